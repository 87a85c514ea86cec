// Compiled with -G: debug sections, .loc with inlining, labels for the debugger.
__device__ int clamp(int x) { return x < 0 ? 0 : x; }
extern "C" __global__ void debugged(int *o, int n) {
  if ((int)threadIdx.x >= n) return;
  o[threadIdx.x] = clamp(o[threadIdx.x]);
}
