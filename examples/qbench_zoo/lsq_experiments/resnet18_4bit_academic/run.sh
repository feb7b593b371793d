#!/bin/sh
# sh run.sh --pretrained resnet18.pth; for several processes put `torchrun --nproc-per-node 8 -m` in place of `python -u -m`.
python -u -m detent.compat.mqbench.solver --config config.yaml "$@"
