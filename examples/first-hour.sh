#!/usr/bin/env bash
# From nothing to a model of your own: launched, watched in a browser while it runs, its fastest recipe exported.
# Three commands install it; the others are below.
#
#   git clone URL frontrunner && cd frontrunner
#   python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[serve]'
#   PATH=$PWD/.venv/bin:$PATH examples/first-hour.sh config.json
#
# config.json is what Hugging Face publishes beside a model's weights. All files are written to the working folder.
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

frontrunner init --model "$1" --cluster this-machine --sequence-length 128 --global-batch 16 --out mine.toml
frontrunner plan mine.toml --top 3
frontrunner serve --port 0 --token-file tokens.json >link.txt &
frontrunner launch mine.toml --set budget.probes=4 &
campaign=$!

# The link that `serve` prints signs a browser in, once. Here the browser is curl.
until link=$(grep http link.txt); do sleep 1; done
curl --fail --silent --show-error --cookie-jar cookies.txt --output login.html "$link"
while kill -0 "$campaign" && ! grep --silent '>running<' live.html; do
    curl --fail --silent --cookie cookies.txt --output live.html "${link%/login*}/campaigns/mine" || sleep 1
done 2>/dev/null
grep '>running<' live.html

wait "$campaign"
winner=$(frontrunner best mine --top 1 --json | grep recipe_id | cut -d '"' -f 4)
frontrunner export "$winner" --to recipe --out winner.json
