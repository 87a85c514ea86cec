/* Launches, function attributes, occupancy. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "driver.h"

/* ---- attributes ---- */

static CUresult get_attribute(const struct sim_function *function, int attribute, int *value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)function->max_threads; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)function->static_shared; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)function->local_bytes; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = SIM_REGISTERS; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = (int)function->module->ptx_version; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->dynamic_shared_limit; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = function->carveout; return CUDA_SUCCESS;
    default:
      if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
      *value = function->attributes[attribute];
      return CUDA_SUCCESS;
  }
}

static CUresult set_attribute(struct sim_function *function, int attribute, int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      NEED(value >= 0 && value <= SIM_MAX_SHARED_OPTIN - (int)function->static_shared);
      function->dynamic_shared_limit = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      NEED(value >= -1 && value <= 100);
      function->carveout = value;
      return CUDA_SUCCESS;
    case 14: /* non-portable cluster size allowed */
    case 15: /* cluster scheduling policy preference */
      function->attributes[attribute] = value;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle) {
  ENTER();
  TRY(sim_check_context());
  struct sim_function *function;
  NEED(value);
  TRY(function_resolve(handle, &function));
  return get_attribute(function, attribute, value);
}

API CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
  ENTER();
  TRY(sim_check_context());
  struct sim_function *function;
  TRY(function_resolve(handle, &function));
  return set_attribute(function, attribute, value);
}

API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
  ENTER();
  TRY(sim_check());
  struct sim_function *function;
  NEED(value && sim_is_device(device));
  TRY(function_resolve(kernel, &function));
  return get_attribute(function, attribute, value);
}

API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
  ENTER();
  TRY(sim_check());
  struct sim_function *function;
  NEED(sim_is_device(device));
  TRY(function_resolve(kernel, &function));
  return set_attribute(function, attribute, value);
}

API CUresult cuFuncSetCacheConfig(CUfunction handle, int config) {
  ENTER();
  TRY(sim_check_context());
  struct sim_function *function;
  NEED(config >= 0 && config <= 3);
  return function_resolve(handle, &function); /* a preference about a cache that does not exist */
}

API CUresult cuFuncGetName(const char **name, CUfunction function) {
  ENTER();
  TRY(sim_check_context());
  NEED(name);
  /* as the real driver: a contextless kernel is no function here */
  if (!function || function->tag != TAG_FUNCTION) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->name;
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
  ENTER();
  TRY(sim_check_context());
  NEED(module);
  if (!function || function->tag != TAG_FUNCTION) return CUDA_ERROR_INVALID_HANDLE;
  *module = function->module;
  return CUDA_SUCCESS;
}

static CUresult parameter_info(void *handle, size_t index, size_t *offset, size_t *size) {
  struct sim_function *function;
  NEED(offset);
  TRY(function_resolve(handle, &function));
  NEED(index < function->parameter_count);
  *offset = function->parameters[index].offset;
  if (size) *size = function->parameters[index].size;
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
  ENTER();
  TRY(sim_check_context());
  return parameter_info(function, index, offset, size);
}

API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
  ENTER();
  TRY(sim_check());
  return parameter_info(kernel, index, offset, size);
}

API CUresult cuFuncIsLoaded(int *state, CUfunction handle) {
  ENTER();
  TRY(sim_check_context());
  struct sim_function *function;
  NEED(state);
  TRY(function_resolve(handle, &function));
  *state = 1;
  return CUDA_SUCCESS;
}

API CUresult cuFuncLoad(CUfunction handle) {
  ENTER();
  TRY(sim_check_context());
  struct sim_function *function;
  return function_resolve(handle, &function);
}

/* ---- occupancy: the simulated SM has no register file, so threads, blocks and shared memory bind ---- */

int launch_blocks_per_sm(const struct sim_function *function, int threads, size_t dynamic_shared) {
  int rounded = (threads + 31) / 32 * 32;
  int blocks = SIM_THREADS_PER_SM / rounded;
  if (blocks > SIM_BLOCKS_PER_SM) blocks = SIM_BLOCKS_PER_SM;
  size_t shared = function->static_shared + dynamic_shared;
  if (shared && (size_t)blocks > SIM_MAX_SHARED_OPTIN / shared) blocks = (int)(SIM_MAX_SHARED_OPTIN / shared);
  return blocks;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads, size_t dynamic_shared) {
  ENTER();
  TRY(sim_check_context());
  struct sim_function *function;
  NEED(blocks && threads > 0);
  TRY(function_resolve(handle, &function));
  *blocks = threads > (int)function->max_threads ? 0 : launch_blocks_per_sm(function, threads, dynamic_shared);
  return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle, int threads,
                                                                  size_t dynamic_shared, unsigned flags) {
  NEED(!(flags & ~1u));
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, threads, dynamic_shared);
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle, size_t (*shared_of)(int),
                                                       size_t dynamic_shared, int limit, unsigned flags) {
  ENTER();
  TRY(sim_check_context());
  struct sim_function *function;
  NEED(grid && block && !(flags & ~1u));
  TRY(function_resolve(handle, &function));
  int most = (int)function->max_threads, best = 0;
  if (limit > 0 && limit < most) most = limit;
  *grid = *block = 0;
  for (int threads = most; threads > 0; threads = threads > 32 ? (threads - 1) / 32 * 32 : 0) {
    int resident = launch_blocks_per_sm(function, threads, shared_of ? shared_of(threads) : dynamic_shared);
    if (resident * threads <= best) continue;
    best = resident * threads;
    *block = threads;
    *grid = resident * (int)sim_sm_count();
  }
  return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle, size_t (*shared_of)(int),
                                              size_t dynamic_shared, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, shared_of, dynamic_shared, limit, 0);
}

API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks, int threads) {
  ENTER();
  TRY(sim_check_context());
  struct sim_function *function;
  NEED(bytes && blocks > 0 && threads > 0);
  TRY(function_resolve(handle, &function));
  size_t each = SIM_MAX_SHARED_OPTIN / (size_t)blocks;
  *bytes = each > function->static_shared ? each - function->static_shared : 0;
  return CUDA_SUCCESS;
}

/* ---- launch ---- */

CUresult launch_run(const struct sim_launch *launch) {
  CUresult result = wire_launch(launch);
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
      sim_fault(result); /* as on a device: the launch was accepted, the context is lost */
      return CUDA_SUCCESS;
    default: return result;
  }
}

CUresult launch_check(const struct sim_launch *launch) {
  const struct sim_function *function = launch->function;
  uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
  for (int i = 0; i < 3; i++) NEED(launch->grid[i] && launch->block[i]);
  NEED(launch->grid[0] <= 2147483647u && launch->grid[1] <= 65535 && launch->grid[2] <= 65535);
  NEED(launch->block[0] <= 1024 && launch->block[1] <= 1024 && launch->block[2] <= 64 && threads <= SIM_MAX_THREADS);
  NEED(threads <= function->max_threads);
  NEED(launch->dynamic_shared <= (unsigned)function->dynamic_shared_limit);
  if (!launch->cooperative) return CUDA_SUCCESS;
  uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  uint64_t room = (uint64_t)launch_blocks_per_sm(function, (int)threads, launch->dynamic_shared) * sim_sm_count();
  return blocks <= room ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

/* Fills `bytes` (the function's parameter block) from either form of arguments. */
static CUresult gather(const struct sim_function *function, void **values, void **extra, unsigned char *bytes) {
  if (values || !extra) {
    NEED(values || !function->parameter_count);
    for (uint32_t i = 0; i < function->parameter_count; i++) {
      NEED(values[i]);
      memcpy(bytes + function->parameters[i].offset, values[i], function->parameters[i].size);
    }
    return CUDA_SUCCESS;
  }
  const void *buffer = NULL;
  size_t size = 0;
  bool sized = false;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[1];
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      NEED(extra[1]);
      size = *(const size_t *)extra[1];
      sized = true;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  NEED(sized && size >= function->parameter_bytes && (buffer || !function->parameter_bytes));
  if (function->parameter_bytes) memcpy(bytes, buffer, function->parameter_bytes);
  return CUDA_SUCCESS;
}

CUresult launch_parameters(struct sim_launch *launch, void **values, void **extra) {
  NEED(!(values && extra));
  launch->parameter_bytes = launch->function->parameter_bytes;
  launch->parameters = calloc(launch->parameter_bytes + 1u, 1);
  if (!launch->parameters) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = gather(launch->function, values, extra, launch->parameters);
  if (!result) return CUDA_SUCCESS;
  free(launch->parameters);
  launch->parameters = NULL;
  return result;
}

static CUresult launch_with(struct sim_launch *launch, CUstream handle, void **values, void **extra) {
  struct sim_stream *stream;
  bool capturing;
  TRY(launch_check(launch));
  TRY(stream_capture(handle, &stream, &capturing));
  TRY(launch_parameters(launch, values, extra));
  if (capturing) {
    struct sim_node *node = capture_append(stream, NODE_KERNEL);
    if (node) {
      node->launch = *launch; /* the node owns the bytes */
      return CUDA_SUCCESS;
    }
  }
  CUresult result = capturing ? CUDA_ERROR_OUT_OF_MEMORY : launch_run(launch);
  free(launch->parameters);
  return result;
}

static CUresult launch_plain(CUfunction handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, CUstream stream, void **values, void **extra, bool cooperative) {
  ENTER();
  TRY(sim_check_context());
  struct sim_launch launch = {
      .grid = {gx, gy, gz}, .block = {bx, by, bz}, .dynamic_shared = shared, .cooperative = cooperative};
  TRY(function_resolve(handle, &launch.function));
  return launch_with(&launch, stream, values, extra);
}

API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream stream, void **values, void **extra) {
  return launch_plain(function, gx, gy, gz, bx, by, bz, shared, stream, values, extra, false);
}

API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                       unsigned bz, unsigned shared, CUstream stream, void **values) {
  return launch_plain(function, gx, gy, gz, bx, by, bz, shared, stream, values, NULL, true);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction handle, void **values, void **extra) {
  ENTER();
  TRY(sim_check_context());
  NEED(config && (config->attrs || !config->numAttrs));
  struct sim_launch launch = {
      .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
      .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
      .dynamic_shared = config->sharedMemBytes,
  };
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const CUlaunchAttribute *attribute = &config->attrs[i];
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) launch.cooperative = attribute->value.cooperative != 0;
    if (attribute->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue; /* the rest is about speed */
    if (attribute->value.cluster.x * attribute->value.cluster.y * attribute->value.cluster.z > 1) {
      sim_say("thread block clusters are not simulated");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  TRY(function_resolve(handle, &launch.function));
  return launch_with(&launch, config->hStream, values, extra);
}
