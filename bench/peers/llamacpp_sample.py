"""llama.cpp's server with continuous batching, the peer of sample_bench: the same requests, greedy, on the base model.

llamacpp_sample.py --model F16.gguf --requests REQUESTS.jsonl [--threads N] [--decode N]
The server runs inside this process (xllamacpp), one slot a request. Prints a JSON object.
"""

import argparse
import concurrent.futures
import os

from hf_common import now, read_rows, report_speed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--decode", type=int, default=0)
    args = parser.parse_args()

    import xllamacpp

    rows = read_rows(args.requests)
    longest = max(len(row["prompt"]) + row["max_tokens"] for row in rows)
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_parallel = len(rows)
    params.n_ctx = len(rows) * (longest + 64)
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.cont_batching = True
    params.cache_prompt = False
    params.warmup = True
    params.verbosity = 0
    server = xllamacpp.Server(params)

    def complete(row):
        answer = server.handle_completions({"prompt": row["prompt"], "n_predict": row["max_tokens"], "max_tokens": row["max_tokens"],
                                            "temperature": 0, "ignore_eos": True, "cache_prompt": False})
        body = answer if isinstance(answer, dict) else __import__("json").loads(answer)
        usage = body.get("usage", {})
        made = usage.get("completion_tokens", body.get("tokens_predicted"))
        assert made == row["max_tokens"], body

    complete({"prompt": [1, 2, 3], "max_tokens": 4})
    start = now()
    with concurrent.futures.ThreadPoolExecutor(len(rows)) as pool:
        list(pool.map(complete, rows))
    seconds = now() - start
    tokens = sum(row["max_tokens"] for row in rows)
    extra = {}
    if args.decode:
        complete({"prompt": list(range(100, 164)), "max_tokens": 1})
        start = now()
        complete({"prompt": list(range(100, 164)), "max_tokens": 1})
        prompt_seconds = now() - start
        start = now()
        complete({"prompt": list(range(100, 164)), "max_tokens": args.decode + 1})
        extra["decode_tokens_per_s"] = args.decode / (now() - start - prompt_seconds)
    report_speed("llama.cpp", tokens, seconds, **extra)


if __name__ == "__main__":
    main()
