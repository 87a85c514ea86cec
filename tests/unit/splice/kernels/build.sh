#!/bin/sh
# Compiles the kernels in this folder to PTX. CLANG defaults to the ziglang wheel's.
set -e
here=$(cd "$(dirname "$0")" && pwd)
# Line information holds the folder's path: compile where the path says nothing about a machine.
rm -rf /tmp/egpu-images && mkdir /tmp/egpu-images && cp "$here"/*.cu /tmp/egpu-images
cp "$here"/../../../gpu/workloads/hopper.cu "$here"/../../../gpu/workloads/report.hpp /tmp/egpu-images
cd /tmp/egpu-images
nvcc -ptx -arch=compute_75 plain.cu -o plain.ptx
nvcc -ptx -arch=compute_75 -lineinfo module.cu -o module.ptx
nvcc -ptx -arch=compute_75 functions.cu -o functions.ptx
nvcc -ptx -arch=compute_75 -G debug.cu -o debug.ptx
nvcc -ptx -arch=compute_90 cluster.cu -o cluster.ptx
nvcc -std=c++17 -ptx -arch=sm_90a hopper.cu -o hopper.ptx
${CLANG:-python -m ziglang clang} -x cuda --cuda-device-only -nocudainc -nocudalib \
  --cuda-gpu-arch=sm_80 -O2 -S clang.cu -o clang.ptx
cp *.ptx "$here"
