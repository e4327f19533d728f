BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE attempts (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	run_folder VARCHAR NOT NULL, 
	provenance_id INTEGER, 
	started_at VARCHAR NOT NULL, 
	finished_at VARCHAR, 
	PRIMARY KEY (id), 
	UNIQUE (trial_id, number), 
	CONSTRAINT state_known CHECK (state IN ('running', 'measured', 'failed', 'lost')), 
	CONSTRAINT final_has_time CHECK ((state = 'running') = (finished_at IS NULL)), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id), 
	FOREIGN KEY(trial_id) REFERENCES trials (id), 
	FOREIGN KEY(provenance_id) REFERENCES provenance (id)
);
INSERT INTO "attempts" VALUES(1,1,1,1,'measured','runs/1',NULL,'2026-11-22T03:04:56.649984+00:00','2026-11-22T03:04:56.652004+00:00');
INSERT INTO "attempts" VALUES(2,1,2,1,'failed','runs/2',NULL,'2026-11-22T03:04:56.661192+00:00','2026-11-22T03:04:56.662680+00:00');
INSERT INTO "attempts" VALUES(3,1,3,1,'lost','runs/3',NULL,'2026-11-22T03:04:56.667303+00:00','2026-11-22T03:04:56.668553+00:00');
INSERT INTO "attempts" VALUES(4,1,3,2,'measured','runs/3',NULL,'2026-11-22T03:04:56.672457+00:00','2026-11-22T03:04:56.673833+00:00');
INSERT INTO "attempts" VALUES(5,1,4,1,'running','runs/4',NULL,'2026-11-22T03:04:56.678870+00:00',NULL);
INSERT INTO "attempts" VALUES(6,1,5,1,'measured','runs/5',NULL,'2026-11-22T03:04:56.682006+00:00','2026-11-22T03:04:56.683332+00:00');
CREATE TABLE campaigns (
	id INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	state_reason VARCHAR NOT NULL, 
	strategy VARCHAR NOT NULL, 
	spec_json VARCHAR NOT NULL, 
	problem_json VARCHAR NOT NULL, 
	legal_recipes INTEGER NOT NULL, 
	outcomes INTEGER NOT NULL, 
	driver_seconds DOUBLE NOT NULL, 
	node_seconds_spent DOUBLE NOT NULL, 
	epoch INTEGER NOT NULL, 
	driver_host VARCHAR, 
	driver_pid INTEGER, 
	driven_since VARCHAR, 
	lease_until VARCHAR, 
	created_at VARCHAR NOT NULL, 
	updated_at VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT state_known CHECK (state IN ('created', 'running', 'paused', 'finished', 'failed', 'stopped')), 
	CONSTRAINT running_is_leased CHECK (state <> 'running' OR lease_until IS NOT NULL), 
	CONSTRAINT lease_has_driver CHECK ((driver_host IS NULL) = (lease_until IS NULL)), 
	UNIQUE (name)
);
INSERT INTO "campaigns" VALUES(1,'kept','running','','random','{"search": {"strategy": "random"}}','{"devices":8,"model":"tiny"}',12,4,0.0,10.5,2,'here',1,'2026-03-01T12:30:00.000000+00:00','2026-03-01T12:30:30.000000+00:00','2026-11-22T03:04:56.629798+00:00','2026-03-01T12:30:00.000000+00:00');
CREATE TABLE endings (
	attempt_id INTEGER NOT NULL, 
	ended VARCHAR NOT NULL, 
	PRIMARY KEY (attempt_id), 
	CONSTRAINT ended_known CHECK (ended IN ('known', 'slower', 'noisy', 'limit', 'fixed')), 
	FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);
INSERT INTO "endings" VALUES(6,'slower');
CREATE TABLE events (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	at VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	data_json VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
INSERT INTO "events" VALUES(1,1,'2026-11-22T03:04:56.686503+00:00','tick','{"number":1}');
CREATE TABLE failures (
	attempt_id INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	message VARCHAR NOT NULL, 
	log_tail VARCHAR NOT NULL, 
	log_path VARCHAR, 
	node_seconds DOUBLE NOT NULL, 
	PRIMARY KEY (attempt_id), 
	CONSTRAINT kind_known CHECK (kind IN ('out-of-memory', 'not-finite', 'hung', 'too-slow', 'crashed', 'lost', 'implausible', 'illegal-for-engine')), 
	FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);
INSERT INTO "failures" VALUES(2,'out-of-memory','too large','it''s gone',NULL,1.5);
INSERT INTO "failures" VALUES(3,'lost','vanished','',NULL,0.0);
CREATE TABLE measurements (
	attempt_id INTEGER NOT NULL, 
	step_times_s_json VARCHAR NOT NULL, 
	tokens_per_step BIGINT NOT NULL, 
	tokens_per_s DOUBLE NOT NULL, 
	model_tflops_per_device DOUBLE NOT NULL, 
	hardware_tflops_per_device DOUBLE NOT NULL, 
	mfu DOUBLE, 
	peak_memory_bytes_json VARCHAR NOT NULL, 
	losses_json VARCHAR NOT NULL, 
	node_seconds DOUBLE NOT NULL, 
	build_time_s DOUBLE, 
	first_step_time_s DOUBLE, 
	PRIMARY KEY (attempt_id), 
	FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);
INSERT INTO "measurements" VALUES(1,'[0.5,0.51,0.495]',4096,8192.0,20.0,24.0,0.1,'[1000000000,2000000000]','[5.0,null]',3.0,1.0,0.75);
INSERT INTO "measurements" VALUES(4,'[0.25,0.255,0.2475]',4096,16384.0,40.0,48.0,0.1,'[1000000000,2000000000]','[5.0,null]',3.0,1.0,0.75);
INSERT INTO "measurements" VALUES(6,'[0.75,0.765,0.7424999999999999]',4096,5.46133333333333302996e+03,1.33333333333333339256e+01,16.0,0.1,'[1000000000,2000000000]','[5.0,null]',3.0,1.0,0.75);
CREATE TABLE provenance (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	recorded_at VARCHAR NOT NULL, 
	provenance_json VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
CREATE TABLE standings (
	trial_id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	recipe_id VARCHAR NOT NULL, 
	repeats INTEGER NOT NULL, 
	step_time_s_median DOUBLE NOT NULL, 
	step_time_spread DOUBLE NOT NULL, 
	tokens_per_s DOUBLE NOT NULL, 
	model_tflops_per_device DOUBLE NOT NULL, 
	hardware_tflops_per_device DOUBLE NOT NULL, 
	mfu DOUBLE, 
	peak_memory_bytes_max_rank BIGINT NOT NULL, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (id), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
INSERT INTO "standings" VALUES(1,1,'000000000001',1,0.5,1.52752523165194803445e-02,8192.0,20.0,24.0,0.1,2000000000);
INSERT INTO "standings" VALUES(3,1,'000000000003',1,0.25,1.52752523165194803445e-02,16384.0,40.0,48.0,0.1,2000000000);
INSERT INTO "standings" VALUES(5,1,'000000000005',1,0.75,1.52752523165195133042e-02,5.46133333333333302996e+03,1.33333333333333339256e+01,16.0,0.1,2000000000);
CREATE TABLE store (
	id INTEGER NOT NULL, 
	schema_version INTEGER NOT NULL, 
	created_at VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT one_row CHECK (id = 1)
);
INSERT INTO "store" VALUES(1,1,'2026-11-22T03:04:56.622178+00:00');
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	recipe_id VARCHAR NOT NULL, 
	recipe_json VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	outcome_number INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (campaign_id, recipe_id), 
	UNIQUE (campaign_id, number), 
	UNIQUE (campaign_id, outcome_number), 
	CONSTRAINT state_known CHECK (state IN ('queued', 'running', 'measured', 'failed')), 
	CONSTRAINT final_is_numbered CHECK ((state IN ('measured', 'failed')) = (outcome_number IS NOT NULL)), 
	FOREIGN KEY(campaign_id) REFERENCES campaigns (id)
);
INSERT INTO "trials" VALUES(1,1,1,'000000000001','{"accumulation":4,"activation_offload":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","feed_forward_tiles":1,"layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":1,"offload":"none","optimizer_state":"fp32","pipeline_parallel":2,"recompute":"none","replication":"replicate","schedule":"1f1b","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":2,"parameters":1},"synchronise":"last","tensor_parallel":2,"virtual_stages":1}','measured',1);
INSERT INTO "trials" VALUES(2,1,2,'000000000002','{"accumulation":4,"activation_offload":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","feed_forward_tiles":1,"layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":2,"offload":"none","optimizer_state":"fp32","pipeline_parallel":2,"recompute":"none","replication":"replicate","schedule":"1f1b","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":2,"parameters":1},"synchronise":"last","tensor_parallel":2,"virtual_stages":1}','failed',2);
INSERT INTO "trials" VALUES(3,1,3,'000000000003','{"accumulation":4,"activation_offload":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","feed_forward_tiles":1,"layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":3,"offload":"none","optimizer_state":"fp32","pipeline_parallel":2,"recompute":"none","replication":"replicate","schedule":"1f1b","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":2,"parameters":1},"synchronise":"last","tensor_parallel":2,"virtual_stages":1}','measured',3);
INSERT INTO "trials" VALUES(4,1,4,'000000000004','{"accumulation":4,"activation_offload":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","feed_forward_tiles":1,"layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":4,"offload":"none","optimizer_state":"fp32","pipeline_parallel":2,"recompute":"none","replication":"replicate","schedule":"1f1b","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":2,"parameters":1},"synchronise":"last","tensor_parallel":2,"virtual_stages":1}','running',NULL);
INSERT INTO "trials" VALUES(5,1,5,'000000000005','{"accumulation":4,"activation_offload":false,"compile":false,"context_parallel":1,"devices":8,"engine":"torch","feed_forward_tiles":1,"layers_per_stage":[],"loss_chunks":1,"micro_batch_seqs":5,"offload":"none","optimizer_state":"fp32","pipeline_parallel":2,"recompute":"none","replication":"replicate","schedule":"1f1b","secondary_partition":1,"sequence_parallel":false,"sharding":{"gradients":1,"optimizer":2,"parameters":1},"synchronise":"last","tensor_parallel":2,"virtual_stages":1}','measured',4);
CREATE INDEX ix_provenance_campaign_id ON provenance (campaign_id);
CREATE INDEX trials_by_state ON trials (campaign_id, state);
CREATE INDEX trials_by_recipe ON trials (recipe_id);
CREATE INDEX events_by_campaign ON events (campaign_id, id);
CREATE INDEX attempts_by_state ON attempts (campaign_id, state);
CREATE INDEX standings_by_memory ON standings (campaign_id, peak_memory_bytes_max_rank, recipe_id);
CREATE INDEX standings_by_tflops ON standings (campaign_id, model_tflops_per_device, recipe_id);
CREATE INDEX standings_by_step_time ON standings (campaign_id, step_time_s_median, recipe_id);
CREATE INDEX standings_by_tokens ON standings (campaign_id, tokens_per_s DESC, peak_memory_bytes_max_rank, recipe_id, trial_id);
COMMIT;
