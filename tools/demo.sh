#!/usr/bin/env bash
# The shipped model answers: what is in it, three questions, and a small batch file. `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=build/release/deepinfer
model=${1:-models/tiny}

# show ARGUMENT...: print the command as one would type it, then run it.
show() {
    local arg
    printf '\n$ deepinfer'
    for arg; do
        case $arg in
        *[!A-Za-z0-9_./-]*) printf " '%s'" "$arg" ;;
        *) printf ' %s' "$arg" ;;
        esac
    done
    printf '\n'
    "$bin" "$@"
}

text='Read the text and answer the question.

Lily has a pet badger. Lily works as a gardener. Lily likes to eat noodles. Lily lives in Paris. Lily is 72 years old. The favourite color of Lily is yellow. The favourite color of David is yellow. David likes to eat beans. David is 25 years old. David has a pet squirrel. David lives in Madrid. David works as a painter.

What does David like to eat?'

show inspect "$model"
show generate --model "$model" --temperature 0 --thinking off --prompt "$text"
show generate --model "$model" --temperature 0 --effort max --prompt "What is 42 + 35?"
show generate --model "$model" --seed 7 --thinking off --max-tokens 120 --prompt \
    "Tell me a story about a fox and a kite."

mkdir -p build/demo
cat >build/demo/questions.jsonl <<'LINES'
{"messages": [{"role": "user", "content": "What is the capital of Norway?"}]}
{"messages": [{"role": "system", "content": "Answer in short sentences."}, {"role": "user", "content": "Count from 12 to 25."}]}
{"custom_id": "opposite", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "What is the opposite of big?"}]}}
LINES
show generate --model "$model" --temperature 0 --thinking off --overwrite --input build/demo/questions.jsonl \
    --output build/demo/answers.jsonl
cat build/demo/answers.jsonl
echo
echo "Talk with it: build/release/deepinfer chat --model $model"
