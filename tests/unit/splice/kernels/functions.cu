// Function pointers: taken in the kernel, from a table, from the host.
typedef int (*Operation)(int);
__device__ __noinline__ int increment(int x) { return x + 1; }
__device__ __noinline__ int decrement(int x) { return x - 1; }
__device__ Operation operations[2] = {increment, decrement};
extern "C" __global__ void function_table(int *o) { o[1] = operations[o[2]](3); }
extern "C" __global__ void function_pointer(int *o, int n) {
  Operation operation = n > 3 ? increment : decrement;
  asm volatile("" : "+l"(operation));
  o[0] = operation(n);
}
extern "C" __global__ void foreign_pointer(int *o, Operation operation) { o[0] = operation(3); }
