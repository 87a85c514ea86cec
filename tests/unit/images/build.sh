#!/bin/sh
# Builds the images in this folder from kernels.cu with nvcc 13.0.
set -e
here=$(cd "$(dirname "$0")" && pwd)
# Line information holds the folder's path: compile where the path says nothing about a machine.
rm -rf /tmp/egpu-images && mkdir /tmp/egpu-images && cp "$here"/*.cu /tmp/egpu-images
cd /tmp/egpu-images
nvcc -fatbin -arch=sm_90 kernels.cu -o zstd.fatbin
nvcc -fatbin -arch=sm_90 --compress-mode=none kernels.cu -o plain.fatbin
nvcc -fatbin -arch=sm_90 --compress-mode=speed kernels.cu -o lz4.fatbin
nvcc -fatbin -arch=sm_90 --compress-mode=size kernels.cu -o size.fatbin
nvcc -fatbin --compress-mode=size \
  -gencode arch=compute_80,code=[sm_80,compute_80] \
  -gencode arch=compute_90a,code=[sm_90a,compute_90a] \
  -gencode arch=compute_100f,code=[sm_100f,compute_100f] \
  -gencode arch=compute_120,code=compute_120 kernels.cu -o several.fatbin
nvcc -fatbin -gencode arch=compute_90,code=sm_90 kernels.cu -o machine_code.fatbin
nvcc -cubin -arch=sm_90 kernels.cu -o sm_90.cubin
nvcc -cubin -arch=sm_80 kernels.cu -o sm_80.cubin
nvcc -cubin -arch=sm_120 kernels.cu -o sm_120.cubin
nvcc -cubin -arch=sm_90a -lineinfo kernels.cu -o lineinfo_sm_90a.cubin
nvcc -ptx -arch=sm_90 kernels.cu -o kernels.ptx
cp *.fatbin *.cubin *.ptx "$here"
