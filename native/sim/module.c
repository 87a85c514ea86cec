/* Modules and libraries.  The server reads the image; this side keeps names, sizes and handles.
 *
 * Reply of a load: u32 module, u32 functions, u32 globals, u32 ptx version (major * 10 + minor); then
 *   function: u32 static shared, u32 max threads, u32 local bytes, u32 parameter bytes,
 *             u32 parameters, u32 name length, parameters x (u32 offset, u32 size), name
 *   global:   u64 size, u32 reserved, u32 name length, name
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api.h"
#include "driver.h"

struct cursor {
  const unsigned char *at, *end;
  bool broken;
};

static void take(struct cursor *cursor, void *to, size_t size) {
  if (cursor->broken || (size_t)(cursor->end - cursor->at) < size) {
    cursor->broken = true;
    memset(to, 0, size);
    return;
  }
  memcpy(to, cursor->at, size);
  cursor->at += size;
}

static uint32_t take32(struct cursor *cursor) {
  uint32_t value;
  take(cursor, &value, sizeof value);
  return value;
}

static uint64_t take64(struct cursor *cursor) {
  uint64_t value;
  take(cursor, &value, sizeof value);
  return value;
}

static char *take_name(struct cursor *cursor, uint32_t length) {
  if (cursor->broken || (size_t)(cursor->end - cursor->at) < length) {
    cursor->broken = true;
    return NULL;
  }
  char *name = malloc((size_t)length + 1);
  if (!name) {
    cursor->broken = true;
    return NULL;
  }
  take(cursor, name, length);
  name[length] = 0;
  return name;
}

static void module_free(struct sim_module *module) {
  for (uint32_t i = 0; i < module->function_count; i++) {
    free(module->functions[i].name);
    free(module->functions[i].parameters);
    module->functions[i].tag = 0;
  }
  for (uint32_t i = 0; i < module->global_count; i++) free(module->globals[i].name);
  free(module->functions);
  free(module->globals);
  module->tag = 0;
  free(module);
}

static void take_function(struct cursor *cursor, struct sim_function *function) {
  function->static_shared = take32(cursor);
  function->max_threads = take32(cursor);
  function->local_bytes = take32(cursor);
  function->parameter_bytes = take32(cursor);
  uint32_t parameters = take32(cursor), length = take32(cursor);
  function->dynamic_shared_limit = SIM_MAX_SHARED - (int)function->static_shared;
  function->carveout = -1;
  if (cursor->broken || parameters > (size_t)(cursor->end - cursor->at) / 8) {
    cursor->broken = true;
    return;
  }
  if (parameters) {
    function->parameters = calloc(parameters, sizeof *function->parameters);
    if (!function->parameters) {
      cursor->broken = true;
      return;
    }
    function->parameter_count = parameters;
    for (uint32_t i = 0; i < parameters; i++) {
      function->parameters[i].offset = take32(cursor);
      function->parameters[i].size = take32(cursor);
    }
  }
  function->name = take_name(cursor, length);
}

static struct sim_module *module_read(const struct sim_module_info *info) {
  struct cursor cursor = {.at = info->bytes, .end = info->bytes + info->size};
  struct sim_module *module = calloc(1, sizeof *module);
  if (!module) return NULL;
  module->tag = TAG_MODULE;
  module->id = take32(&cursor);
  uint32_t functions = take32(&cursor), globals = take32(&cursor);
  module->ptx_version = take32(&cursor);
  cursor.broken |= functions > info->size / 24 || globals > info->size / 16;
  if (!cursor.broken) {
    module->functions = calloc(functions + 1u, sizeof *module->functions);
    module->globals = calloc(globals + 1u, sizeof *module->globals);
    cursor.broken |= !module->functions || !module->globals;
  }
  for (uint32_t i = 0; i < functions && !cursor.broken; i++) {
    struct sim_function *function = &module->functions[i];
    function->tag = TAG_FUNCTION;
    function->index = i;
    function->module = module;
    module->function_count = i + 1;
    take_function(&cursor, function);
  }
  for (uint32_t i = 0; i < globals && !cursor.broken; i++) {
    module->global_count = i + 1;
    module->globals[i].size = take64(&cursor);
    take32(&cursor);
    module->globals[i].name = take_name(&cursor, take32(&cursor));
  }
  if (!cursor.broken) return module;
  module_free(module);
  return NULL;
}

static void globals_free(struct sim_module *module) {
  for (uint32_t i = 0; i < module->global_count; i++)
    if (module->globals[i].address) (void)memory_free(module->globals[i].address);
}

static CUresult module_bind(struct sim_module *module) {
  for (uint32_t i = 0; i < module->global_count; i++) {
    struct sim_global *global = &module->globals[i];
    if (!global->size) continue; /* extern shared memory and the like have no place here */
    TRY(memory_allocate(global->size, &global->address));
    memset((void *)(uintptr_t)global->address, 0, global->size);
  }
  return wire_bind(module->id, module->globals, module->global_count);
}

/* Bytes of an image from its own head, as the real driver finds them: callers give no length. */
static CUresult image_extent(const void **image, size_t *size) {
  const unsigned char *at = *image;
  uint32_t magic;
  memcpy(&magic, at, sizeof magic);
  if (magic == 0x466243b1u) { /* wrapper: the fatbin's address is at +8 */
    memcpy(&at, at + 8, sizeof at);
    if (!at) return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&magic, at, sizeof magic);
    *image = at;
  }
  if (magic == 0xba55ed50u) {
    uint16_t header;
    uint64_t payload;
    memcpy(&header, at + 6, sizeof header);
    memcpy(&payload, at + 8, sizeof payload);
    if (payload > (1ull << 32)) return CUDA_ERROR_INVALID_IMAGE;
    *size = header + (size_t)payload;
    return CUDA_SUCCESS;
  }
  if (!memcmp(at, "\177ELF", 4)) {
    sim_say("this image is machine code; the simulated device runs PTX (give it PTX text or a fatbin with PTX)");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  *size = strlen((const char *)at);
  return *size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

static CUresult load(const void *image, struct sim_module **module) {
  size_t size;
  TRY(image_extent(&image, &size));
  struct sim_module_info info;
  TRY(wire_load(image, size, &info));
  struct sim_module *made = module_read(&info);
  free(info.bytes);
  if (!made) {
    sim_say("the server described a module in a way that cannot be read");
    return CUDA_ERROR_UNKNOWN;
  }
  CUresult result = module_bind(made);
  if (result) {
    globals_free(made);
    (void)wire_unload(made->id);
    module_free(made);
    return result;
  }
  *module = made;
  return CUDA_SUCCESS;
}

static CUresult unload(struct sim_module *module) {
  TRY(wire_unload(module->id));
  globals_free(module);
  module_free(module);
  return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  ENTER();
  TRY(sim_check_context());
  NEED(module && image);
  return load(image, module);
}

/* Nothing is compiled, so the information log is empty; the error log gets the refusal. */
static void fill_logs(unsigned count, const int *options, void **values, CUresult result) {
  enum { INFO_LOG_SIZE = 4, ERROR_LOG = 5, ERROR_LOG_SIZE = 6 };
  char *log = NULL;
  size_t written = 0;
  for (unsigned i = 0; i < count; i++)
    if (options[i] == ERROR_LOG) log = values[i];
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == INFO_LOG_SIZE) values[i] = NULL;
    if (options[i] != ERROR_LOG_SIZE) continue;
    size_t room = (size_t)(uintptr_t)values[i];
    if (log && room) {
      if (result) written = strlen(sim_last());
      if (written >= room) written = room - 1;
      memcpy(log, sim_last(), written);
      log[written] = 0;
    }
    values[i] = (void *)(uintptr_t)written;
  }
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
  NEED(!count || (options && values));
  CUresult result = cuModuleLoadData(module, image);
  fill_logs(count, options, values, result);
  return result;
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { return cuModuleLoadData(module, image); }

static CUresult read_file(const char *path, char **text) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_FILE_NOT_FOUND;
  struct stat status;
  if (fstat(fd, &status) < 0 || status.st_size < 4) {
    close(fd);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  size_t size = (size_t)status.st_size, got = 0;
  *text = calloc(size + 64, 1);
  while (*text && got < size) {
    ssize_t part = read(fd, *text + got, size - got);
    if (part <= 0) break;
    got += (size_t)part;
  }
  close(fd);
  if (!*text) return CUDA_ERROR_OUT_OF_MEMORY;
  if (got == size) return CUDA_SUCCESS;
  free(*text);
  return CUDA_ERROR_OPERATING_SYSTEM;
}

API CUresult cuModuleLoad(CUmodule *module, const char *path) {
  NEED(path);
  char *text;
  TRY(read_file(path, &text));
  CUresult result = cuModuleLoadData(module, text);
  free(text);
  return result;
}

API CUresult cuModuleUnload(CUmodule module) {
  ENTER();
  TRY(sim_check_context());
  if (!module || module->tag != TAG_MODULE || module->library) return CUDA_ERROR_INVALID_HANDLE;
  return unload(module);
}

API CUresult cuModuleGetLoadingMode(int *mode) {
  NEED(mode);
  *mode = 1; /* eager */
  return CUDA_SUCCESS;
}

static CUresult function_named(struct sim_module *module, const char *name, struct sim_function **function) {
  for (uint32_t i = 0; i < module->function_count; i++)
    if (!strcmp(module->functions[i].name, name)) {
      *function = &module->functions[i];
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}

static CUresult global_named(struct sim_module *module, const char *name, CUdeviceptr *address, size_t *size) {
  for (uint32_t i = 0; i < module->global_count; i++)
    if (!strcmp(module->globals[i].name, name)) {
      if (address) *address = module->globals[i].address;
      if (size) *size = module->globals[i].size;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  ENTER();
  TRY(sim_check_context());
  NEED(function && name);
  if (!module || module->tag != TAG_MODULE) return CUDA_ERROR_INVALID_HANDLE;
  return function_named(module, name, function);
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name) {
  ENTER();
  TRY(sim_check_context());
  NEED(name);
  if (!module || module->tag != TAG_MODULE) return CUDA_ERROR_INVALID_HANDLE;
  return global_named(module, name, address, size);
}

API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
  ENTER();
  TRY(sim_check_context());
  NEED(count && module && module->tag == TAG_MODULE);
  *count = module->function_count;
  return CUDA_SUCCESS;
}

API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module) {
  ENTER();
  TRY(sim_check_context());
  NEED(functions && module && module->tag == TAG_MODULE && count <= module->function_count);
  for (unsigned i = 0; i < count; i++) functions[i] = &module->functions[i];
  return CUDA_SUCCESS;
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *options, void **values, unsigned count, int *library_options,
                               void **library_values, unsigned library_count) {
  (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
  ENTER();
  TRY(sim_check());
  NEED(library && image);
  struct sim_library *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = load(image, &made->module);
  if (result) {
    free(made);
    return result;
  }
  made->tag = TAG_LIBRARY;
  made->module->library = made;
  made->kernels = calloc(made->module->function_count + 1u, sizeof *made->kernels);
  if (!made->kernels) {
    (void)unload(made->module);
    free(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (uint32_t i = 0; i < made->module->function_count; i++) {
    made->kernels[i] = (struct sim_kernel){.tag = TAG_KERNEL, .library = made, .function = &made->module->functions[i]};
    made->module->functions[i].kernel = &made->kernels[i];
  }
  *library = made;
  return CUDA_SUCCESS;
}

API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *options, void **values, unsigned count,
                                   int *library_options, void **library_values, unsigned library_count) {
  NEED(path);
  char *text;
  TRY(read_file(path, &text));
  CUresult result = cuLibraryLoadData(library, text, options, values, count, library_options, library_values, library_count);
  free(text);
  return result;
}

API CUresult cuLibraryUnload(CUlibrary library) {
  ENTER();
  TRY(sim_check());
  if (!library || library->tag != TAG_LIBRARY) return CUDA_ERROR_INVALID_HANDLE;
  TRY(unload(library->module));
  free(library->kernels);
  library->tag = 0;
  free(library);
  return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  ENTER();
  TRY(sim_check());
  NEED(kernel && name);
  if (!library || library->tag != TAG_LIBRARY) return CUDA_ERROR_INVALID_HANDLE;
  struct sim_function *function;
  TRY(function_named(library->module, name, &function));
  *kernel = function->kernel;
  return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
  ENTER();
  TRY(sim_check());
  NEED(count && library && library->tag == TAG_LIBRARY);
  *count = library->module->function_count;
  return CUDA_SUCCESS;
}

API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
  ENTER();
  TRY(sim_check());
  NEED(kernels && library && library->tag == TAG_LIBRARY && count <= library->module->function_count);
  for (unsigned i = 0; i < count; i++) kernels[i] = &library->kernels[i];
  return CUDA_SUCCESS;
}

API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
  ENTER();
  TRY(sim_check_context());
  NEED(module);
  if (!library || library->tag != TAG_LIBRARY) return CUDA_ERROR_INVALID_HANDLE;
  *module = library->module;
  return CUDA_SUCCESS;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) {
  ENTER();
  TRY(sim_check_context());
  NEED(name);
  if (!library || library->tag != TAG_LIBRARY) return CUDA_ERROR_INVALID_HANDLE;
  return global_named(library->module, name, address, size);
}

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  ENTER();
  TRY(sim_check_context());
  NEED(function);
  if (!kernel || kernel->tag != TAG_KERNEL) return CUDA_ERROR_INVALID_HANDLE;
  *function = kernel->function;
  return CUDA_SUCCESS;
}

API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
  ENTER();
  TRY(sim_check());
  NEED(library);
  if (!kernel || kernel->tag != TAG_KERNEL) return CUDA_ERROR_INVALID_HANDLE;
  *library = kernel->library;
  return CUDA_SUCCESS;
}

API CUresult cuKernelGetName(const char **name, CUkernel kernel) {
  ENTER();
  TRY(sim_check());
  NEED(name);
  if (!kernel || kernel->tag != TAG_KERNEL) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->function->name;
  return CUDA_SUCCESS;
}

CUresult function_resolve(void *handle, struct sim_function **function) {
  struct sim_function *candidate = handle;
  if (!candidate) return CUDA_ERROR_INVALID_HANDLE;
  if (candidate->tag == TAG_FUNCTION) {
    *function = candidate;
    return CUDA_SUCCESS;
  }
  struct sim_kernel *kernel = handle;
  if (kernel->tag != TAG_KERNEL) return CUDA_ERROR_INVALID_HANDLE;
  *function = kernel->function;
  return CUDA_SUCCESS;
}
