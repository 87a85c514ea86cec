// The driver-API workload: PTX text, packed buffers, library handles, graph nodes, capture modes.
//
//     driver KERNELS.ptx|KERNELS.cubin
#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "report.hpp"

#define CHECK(call)                                                     \
  do {                                                                  \
    CUresult result = (call);                                           \
    if (result != CUDA_SUCCESS) {                                       \
      const char *name = "unknown error";                               \
      cuGetErrorName(result, &name);                                    \
      std::fprintf(stderr, "driver: %s: %s\n", #call, name);            \
      std::exit(1);                                                     \
    }                                                                   \
  } while (0)

static Report report;

struct Buffer {
  CUdeviceptr address = 0;
  unsigned count;
  explicit Buffer(unsigned count) : count(count) {
    CHECK(cuMemAlloc(&address, count * sizeof(unsigned)));
    CHECK(cuMemsetD32(address, 0, count));
    CHECK(cuCtxSynchronize());  // a non-blocking stream does not wait for the memset
  }
  std::vector<unsigned> read() const {
    std::vector<unsigned> values(count);
    CHECK(cuMemcpyDtoH(values.data(), address, count * sizeof(unsigned)));
    return values;
  }
  void to_report() const {
    std::vector<unsigned> values = read();
    report.result(values.data(), values.size() * sizeof(unsigned));
  }
};

static CUfunction function(CUmodule module, const char *name) {
  CUfunction handle;
  CHECK(cuModuleGetFunction(&handle, module, name));
  return handle;
}

static void plain(CUmodule module) {
  Buffer out(100 * 33);
  CUfunction add = function(module, "add");
  unsigned value = 3;
  void *parameters[] = {&out.address, &out.count, &value};
  for (unsigned block : {1u, 31u, 33u, 96u, 257u, 1024u})
    for (int i = 0; i < 50; ++i) {
      CHECK(cuLaunchKernel(add, 5, 1, 1, block, 1, 1, 0, nullptr, parameters, nullptr));
      report.launched("add", {5}, {block});
    }
  CUlaunchConfig config = {};
  config.gridDimX = 5;
  config.gridDimY = 2;
  config.gridDimZ = 1;
  config.blockDimX = 10;
  config.blockDimY = 3;
  config.blockDimZ = 2;
  for (int i = 0; i < 50; ++i) {
    CHECK(cuLaunchKernelEx(&config, add, parameters, nullptr));
    report.launched("add", {5, 2}, {10, 3, 2});
  }
  out.to_report();
}

struct Packed {
  unsigned char tag;
  alignas(8) CUdeviceptr out;
  alignas(16) unsigned quad[4];
  unsigned short add;
};

static void packed_buffers(CUmodule module) {
  Buffer out(7 * 40);
  CUfunction packed = function(module, "packed");
  for (int i = 0; i < 100; ++i) {
    Packed buffer{static_cast<unsigned char>(i), out.address, {1, 20, 300, 4000}, 50000};
    size_t size = offsetof(Packed, add) + sizeof buffer.add;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CHECK(cuLaunchKernel(packed, 7, 1, 1, 40, 1, 1, 0, nullptr, nullptr, extra));
    report.launched("packed", {7}, {40});
  }
  // Without parameters both forms are allowed to be absent or empty.
  CUfunction counted = function(module, "counted");
  size_t none = 0;
  void *empty[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &none, CU_LAUNCH_PARAM_BUFFER_SIZE, &none,
                   CU_LAUNCH_PARAM_END};
  for (int i = 0; i < 50; ++i) {
    CHECK(cuLaunchKernel(counted, 2, 1, 1, 45, 1, 1, 0, nullptr, nullptr, i % 2 ? empty : nullptr));
    report.launched("counted", {2}, {45});
  }
  out.to_report();
}

static void variables(CUmodule module) {
  CUdeviceptr counter, target;
  size_t size;
  unsigned count = 0;
  CHECK(cuModuleGetGlobal(&counter, &size, module, "counter"));
  report.expect(size == sizeof count, "size of counter");
  CHECK(cuMemcpyDtoH(&count, counter, sizeof count));
  report.expect(count == 50 * 90, "counter");
  report.result(&count, sizeof count);
  Buffer first(3 * 64), second(3 * 64);
  CHECK(cuModuleGetGlobal(&target, &size, module, "target"));
  CUfunction through = function(module, "through_pointer");
  for (int i = 0; i < 40; ++i) {
    CHECK(cuMemcpyHtoD(target, i % 4 ? &first.address : &second.address, sizeof(CUdeviceptr)));
    CHECK(cuLaunchKernel(through, 3, 1, 1, 64, 1, 1, 0, nullptr, nullptr, nullptr));
    report.launched("through_pointer", {3}, {64});
  }
  first.to_report();
  second.to_report();
}

static void library(const std::string &text) {
  CUlibrary library;
  CUkernel kernel;
  Buffer out(9 * 70);
  CHECK(cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK(cuLibraryGetKernel(&kernel, library, "by_library"));
  void *parameters[] = {&out.address};
  CUfunction inside;
  CHECK(cuKernelGetFunction(&inside, kernel));
  for (int i = 0; i < 60; ++i) {
    CUfunction handle = i % 2 ? inside : reinterpret_cast<CUfunction>(kernel);
    CHECK(cuLaunchKernel(handle, 9, 1, 1, 70, 1, 1, 0, nullptr, parameters, nullptr));
    report.launched("by_library", {9}, {70});
  }
  CHECK(cuCtxSynchronize());
  out.to_report();
  CHECK(cuLibraryUnload(library));
}

// What a program set on a node it reads back, whatever runs in its place.
static void nodes(CUmodule module, CUstream stream) {
  Buffer out(4 * 50), other(4 * 50);
  CUfunction noded = function(module, "noded");
  unsigned value = 7;
  void *parameters[] = {&out.address, &value};
  CUDA_KERNEL_NODE_PARAMS set = {};
  set.func = noded;
  set.gridDimX = 4;
  set.gridDimY = set.gridDimZ = 1;
  set.blockDimX = 50;
  set.blockDimY = set.blockDimZ = 1;
  set.kernelParams = parameters;
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec executable;
  CHECK(cuGraphCreate(&graph, 0));
  CHECK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &set));
  CUDA_KERNEL_NODE_PARAMS got = {};
  CHECK(cuGraphKernelNodeGetParams(node, &got));
  report.expect(got.func == noded && got.gridDimX == 4 && got.blockDimX == 50, "node read back");
  report.expect(*static_cast<unsigned *>(got.kernelParams[1]) == 7, "node parameter read back");
  CHECK(cuGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 30; ++i) CHECK(cuGraphLaunch(executable, stream));
  CHECK(cuStreamSynchronize(stream));
  value = 100;
  parameters[0] = &other.address;
  CHECK(cuGraphExecKernelNodeSetParams(executable, node, &set));
  for (int i = 0; i < 30; ++i) CHECK(cuGraphLaunch(executable, stream));
  CHECK(cuStreamSynchronize(stream));
  report.launched("noded", {4}, {50}, 60);
  out.to_report();
  other.to_report();
  CHECK(cuGraphExecDestroy(executable));
  CHECK(cuGraphDestroy(graph));
}

static void replay(CUgraphExec executable, CUstream stream, const char *kernel, Extent grid, Extent block) {
  for (int i = 0; i < 20; ++i) CHECK(cuGraphLaunch(executable, stream));
  CHECK(cuStreamSynchronize(stream));
  report.launched(kernel, grid, block, 20);
}

// Explicit nodes with packed parameters, and nodes that are set to other parameters and to other kernels, before
// and after the graph is instantiated. "stepped" is recorded four times: nodes are set to it so often.
static void switched_nodes(CUmodule module, CUstream stream) {
  Buffer out(4 * 50), other(4 * 50);
  CUfunction packed = function(module, "packed"), noded = function(module, "noded");
  CUfunction stepped = function(module, "stepped");
  unsigned value = 11;
  void *parameters[] = {&out.address, &value};
  Packed buffer{1, out.address, {2, 30, 400, 5000}, 60000};
  size_t size = offsetof(Packed, add) + sizeof buffer.add;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  CUDA_KERNEL_NODE_PARAMS set = {}, by_pointers = {};
  set.gridDimX = 4;
  set.gridDimY = set.gridDimZ = set.blockDimY = set.blockDimZ = 1;
  set.blockDimX = 50;
  by_pointers = set;
  set.func = packed;
  set.extra = extra;
  by_pointers.kernelParams = parameters;
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec first, second;
  CHECK(cuGraphCreate(&graph, 0));
  CHECK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &set));
  buffer.tag = 9;  // the node has its own copy
  CHECK(cuGraphInstantiate(&first, graph, 0));
  replay(first, stream, "packed", {4}, {50});
  buffer.out = other.address;
  CHECK(cuGraphExecKernelNodeSetParams(first, node, &set));
  replay(first, stream, "packed", {4}, {50});
  for (CUfunction each : {noded, stepped, noded, stepped}) {
    by_pointers.func = each;
    value += 3;
    CHECK(cuGraphExecKernelNodeSetParams(first, node, &by_pointers));
    replay(first, stream, each == noded ? "noded" : "stepped", {4}, {50});
  }
  for (CUfunction each : {stepped, noded, stepped}) {
    by_pointers.func = each;
    for (int turn = 0; turn < 2; ++turn) {  // the second time other parameters only
      value += 100;
      parameters[0] = turn ? &out.address : &other.address;
      CHECK(cuGraphKernelNodeSetParams(node, &by_pointers));
    }
    CHECK(cuGraphInstantiate(&second, graph, 0));
    replay(second, stream, each == noded ? "noded" : "stepped", {4}, {50});
    CHECK(cuGraphExecDestroy(second));
  }
  CHECK(cuGraphKernelNodeSetParams(node, &set));
  CHECK(cuGraphInstantiate(&second, graph, 0));
  replay(second, stream, "packed", {4}, {50});
  // The same by capture.
  CUgraph captured;
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK(cuLaunchKernel(packed, 4, 1, 1, 50, 1, 1, 0, stream, nullptr, extra));
  CHECK(cuStreamEndCapture(stream, &captured));
  CHECK(cuGraphExecDestroy(second));
  CHECK(cuGraphInstantiate(&second, captured, 0));
  replay(second, stream, "packed", {4}, {50});
  out.to_report();
  other.to_report();
  CHECK(cuGraphExecDestroy(first));
  CHECK(cuGraphExecDestroy(second));
  CHECK(cuGraphDestroy(captured));
  CHECK(cuGraphDestroy(graph));
}

static void captures(CUmodule module, CUstream stream) {
  Buffer out(6 * 44);
  CUfunction captured = function(module, "captured");
  unsigned value = 1;
  void *parameters[] = {&out.address, &value};
  for (CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                   CU_STREAM_CAPTURE_MODE_RELAXED}) {
    CUgraph graph;
    CUgraphExec executable;
    CHECK(cuStreamBeginCapture(stream, mode));
    for (int i = 0; i < 4; ++i) {
      CHECK(cuLaunchKernel(captured, 6, 1, 1, 44, 1, 1, 0, stream, parameters, nullptr));
      ++value;
    }
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 25; ++i) CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuStreamSynchronize(stream));
    report.launched("captured", {6}, {44}, 4 * 25);
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
  }
  out.to_report();
}

static void attributes(CUmodule module) {
  constexpr int kBytes = 96 * 1024;
  Buffer out(3 * 128);
  CUfunction large = function(module, "large_shared");
  CHECK(cuFuncSetAttribute(large, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kBytes));
  void *parameters[] = {&out.address};
  for (int i = 0; i < 20; ++i) {
    CHECK(cuLaunchKernel(large, 3, 1, 1, 128, 1, 1, kBytes, nullptr, parameters, nullptr));
    report.launched("large_shared", {3}, {128});
  }
  out.to_report();
}

// Bad images and bad launches fail as they do without a probe.
static void refusals(CUmodule module, const std::string &text) {
  CUmodule none;
  std::string broken = text.substr(0, text.size() / 2);
  report.expect(cuModuleLoadData(&none, broken.c_str()) != CUDA_SUCCESS, "half an image loads");
  report.expect(cuModuleLoadData(&none, "neither PTX nor ELF") != CUDA_SUCCESS, "garbage loads");
  const unsigned char elf[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
  report.expect(cuModuleLoadData(&none, elf) != CUDA_SUCCESS, "an empty ELF loads");
  CUfunction missing;
  report.expect(cuModuleGetFunction(&missing, module, "missing") == CUDA_ERROR_NOT_FOUND, "missing");
  CUfunction counted = function(module, "counted");
  report.expect(cuLaunchKernel(counted, 1, 1, 1, 2048, 1, 1, 0, nullptr, nullptr, nullptr) ==
                    CUDA_ERROR_INVALID_VALUE,
                "a block of 2048 threads launches");
}

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fputs("usage: driver KERNELS\n", stderr);
    return 2;
  }
  std::ifstream file(argv[1]);
  std::stringstream stream_text;
  stream_text << file.rdbuf();
  const std::string text = stream_text.str();
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUstream stream;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, text.c_str()));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  plain(module);
  packed_buffers(module);
  variables(module);
  library(text);
  nodes(module, stream);
  switched_nodes(module, stream);
  captures(module, stream);
  attributes(module);
  if (text[0] != '\x7f') refusals(module, text);
  CHECK(cuStreamDestroy(stream));
  CHECK(cuModuleUnload(module));
  // The same image once more, under new handles.
  CHECK(cuModuleLoadData(&module, text.c_str()));
  plain(module);
  CHECK(cuModuleUnload(module));
  CHECK(cuDevicePrimaryCtxRelease(device));
  return report.finish();
}
