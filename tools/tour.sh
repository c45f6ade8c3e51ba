# Sourced by tools/run: starts the server on the embedded models and walks a client
# through what it can do.  Needs: root, python, stay, say.

bin="$root/build/release/bin"
prompt="The captain walked slowly up the hill towards the house,"
text="The captain walked slowly up the hill towards the house, where the doctor was waiting for him with a letter in his hand."

# start_server PORT METRICS_PORT: sets server (its id), address and metrics.
start_server() {
  local fifo log="$root/build/server.log"
  fifo="$(mktemp -u)"
  mkfifo "$fifo"
  setsid "$bin/gatehouse-server" --listen "127.0.0.1:$1" --metrics-listen "127.0.0.1:$2" --state-dir "$root/state" >"$fifo" 2>"$log" &
  server=$!
  local line=""
  read -r -t 120 line <"$fifo" || true
  rm -f "$fifo"
  address="$(sed -n 's/.*listening on \([^,]*\),.*/\1/p' <<<"$line")"
  metrics="$(sed -n 's/.*metrics on \([^,]*\),.*/\1/p' <<<"$line")"
  if [ -z "$address" ]; then
    echo "The server did not start:" >&2
    tail -n 5 "$log" >&2
    exit 1
  fi
}

gatehouse() { "$bin/gatehouse" --server "$address" "$@"; }

# step TITLE COMMAND...: shows a client command and runs it.
step() {
  local title=$1
  shift
  printf '\n\033[1m%s\033[0m\n' "$title"
  printf '\033[2m$ gatehouse'
  printf ' %q' "$@"
  printf '\033[0m\n'
  gatehouse "$@"
}

# perplexity POLICY...: of the held-out sentence under a policy.
perplexity() {
  gatehouse score --model novella-gpt2-7m --text "$text" --json "$@" |
    "$python" -c 'import json, sys; s = json.load(sys.stdin); r = s["routing"]; print("perplexity %6.2f   %3.0f %% of decisions linear, %3.0f %% of the MLP work saved" % (s["perplexity"], 100 * r["linear_fraction"], 100 * r["mlp_work_saved"]))'
}

linear_counters() {
  "$python" - "$metrics" <<'PY'
import re, sys, urllib.request
page = urllib.request.urlopen(f"http://{sys.argv[1]}/metrics").read().decode()
totals = {}
for labels, value in re.findall(r"^gatehouse_mlp_tokens_total\{(.*)\} (\S+)$", page, re.M):
    label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    key = label["model"], label["path"]
    totals[key] = totals.get(key, 0) + float(value)
for model in sorted({m for m, _ in totals}):
    linear, full = totals.get((model, "linear"), 0), totals.get((model, "full"), 0)
    if linear + full:
        print(f"{model}: {linear:,.0f} of {linear + full:,.0f} token × layer decisions went linear ({100 * linear / (linear + full):.1f} %)")
PY
}

if [ "$stay" -eq 1 ]; then start_server 50151 9464; else start_server 0 0; fi
trap '[ "$stay" -eq 1 ] || { kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true; }' EXIT

step "The models it holds" models
step "Text from the full model" generate --model novella-gpt2-7m --prompt "$prompt" --max-tokens 40 --temperature 0.7 --seed 7
step "The same, each layer's gate deciding token by token" generate --model novella-gpt2-7m --prompt "$prompt" --max-tokens 40 --temperature 0.7 --seed 7 --gating gated --threshold 0.5
step "The same with every MLP replaced by its linear surrogate" generate --model novella-gpt2-7m --prompt "$prompt" --max-tokens 40 --temperature 0.7 --seed 7 --gating linear

printf '\n\033[1mWhat a threshold costs\033[0m\n'
printf 'full              '; perplexity --gating full
for threshold in 0.7 0.5 0.3; do
  printf 'gated at %s      ' "$threshold"
  perplexity --gating gated --threshold "$threshold"
done
printf 'linear            '; perplexity --gating linear

step "Where the MLPs are nonlinear: brighter is more" nonlinearity --model novella-gpt2-7m --text "$text"
step "The consensus neurons at each token" consensus --model novella-gpt2-7m --text "$text"

printf '\n\033[1mWhat Prometheus sees at http://%s/metrics\033[0m\n' "$metrics"
linear_counters

printf '\n\033[1mNext\033[0m\n'
if [ "$stay" -eq 1 ]; then
  printf 'The server is running as process %s (stop it with: kill %s). Try\n' "$server" "$server"
  printf '  build/release/bin/gatehouse generate --model novella-neox-4m --prompt "It was" --gating gated --threshold 0.4\n'
  printf '  build/release/bin/gatehouse calibrate --model novella-gpt2-7m --corpus YOUR-TEXT.txt\n'
else
  printf '  tools/run --stay            the same, and the server stays up\n'
fi
printf '  tools/get-model smollm2-135m   a larger model; README.md says how to serve it\n'
