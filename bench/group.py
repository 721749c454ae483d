"""What sharing a group's prompt is worth: one training step on a group, with its common prompt computed once and with
the prompt computed for every sequence. Ours against ours; nothing is installed.

    python3 bench/group.py [--train lora|full] [--rounds 3] [--smoke]
"""

import harness


def run():
    parser = harness.arguments(__doc__)
    parser.add_argument("--train", choices=["lora", "full"], default="lora", help="what is trained (default lora, rank 16)")
    args = parser.parse_args()
    sizes = {"rows": 8, "prompt": 256, "new": 64, "repeats": 3}
    flags = ["--train", args.train, "--threads", args.threads]
    if args.smoke:
        sizes = {"rows": 3, "prompt": 24, "new": 8, "repeats": 1}
        flags += ["--layers", 2]
    for key, value in sizes.items():
        flags += [f"--{key}", value]
    program = harness.executable("surefoot-train", "example", "bench")

    def contestant(name, share):
        return harness.Contestant(name, [program, "group", "--share", share, *flags, *args.bench_flags.split()])

    contestants = [contestant("surefoot-shared", "yes"), contestant("surefoot-private", "no")]
    pairs = [("surefoot-shared", "surefoot-private")]
    notes = ["tokens are counted as if nothing was shared; only the new ones are trained"]
    harness.compare("group", args, contestants, pairs, sizes | {"train": args.train}, {}, notes)


if __name__ == "__main__":
    harness.main(run)
