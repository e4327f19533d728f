"""Real training probes: job, fork server, supervision, classification, measurement, replay."""
