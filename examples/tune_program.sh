#!/bin/sh
# A program: its tile is an argument, its optimization a flag of its build. {dir} is a folder that
# each configuration has of its own, so it is built once per configuration.
#
#     sh examples/tune_program.sh [N]
set -e
cd "$(dirname "$0")"
foretune tune -- '{dir}/stencil' "${1:-1500}" '{tile}' \
    --param tile=1,16,128,1500 --param opt=-O1,-O3 \
    --build 'cc {opt} stencil.c -o {dir}/stencil' \
    --time 'elapsed: ([0-9.]+) ms' --check 'checksum [0-9]+' --budget 6
