#!/usr/bin/env python3
"""Prints a result of run.sh as a markdown table: for each operation the best of its repetitions.

The best, not the median: on a shared machine the disturbed samples are the slow ones. All samples
stay in the file.
"""

import json
import sys


def best_samples(result):
    best = {}
    for sample in result["benchmarks"]:
        if sample["run_type"] != "iteration":
            continue
        name = sample["run_name"]
        if name not in best or sample["real_time"] < best[name]["real_time"]:
            best[name] = sample
    return best


def percent(sample, key):
    return f"{100 * sample[key]:.0f} %" if key in sample else ""


def number(sample, key):
    return f"{sample[key]:.1f}" if key in sample else ""


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    context = result["context"]
    print(
        f"{context['processor']}, {context['isa']}, {context['threads']} thread(s), "
        f"commit {context['commit']}; measured in the same run: reading "
        f"{float(context['read_gb_per_s']):.1f} GB/s (4 MiB again: "
        f"{float(context['cache_gb_per_s']):.1f}), fp32 "
        f"{float(context['fp32_gflop_per_s']):.0f} GFLOP/s, int16 "
        f"{float(context['int16_gop_per_s']):.0f} Gop/s\n"
    )
    print("| operation | us | GB/s | of reading | of cache | GFLOP/s | of peak |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, sample in best_samples(result).items():
        micros = sample["real_time"] / 1000
        print(
            f"| {name.removesuffix('/real_time')} | {micros:.1f} | {number(sample, 'GB/s')} "
            f"| {percent(sample, 'of_read')} | {percent(sample, 'of_cache')} "
            f"| {number(sample, 'GFLOP/s')} "
            f"| {percent(sample, 'of_peak')} |"
        )


main()
