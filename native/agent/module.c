/* Modules and libraries: loads, unloads, function handles, attributes. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent.h"

static struct module *modules; /* under the modules lock */
static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t last_image;

static inline bool watching(void)
{
    return atomic_load_explicit(&egpu.phase, memory_order_acquire) != PHASE_INERT;
}

struct module *egpu_module_of(void *handle)
{
    pthread_mutex_lock(&modules_lock);
    struct module *module = handle != NULL ? modules : NULL;
    while (module != NULL && module->handle != handle)
        module = module->next;
    pthread_mutex_unlock(&modules_lock);
    return module;
}

uint64_t egpu_image_number(void)
{
    return atomic_fetch_add(&last_image, 1) + 1;
}

/* `module`: what is known of it already, or NULL. */
static struct module *add(void *handle, bool library, struct module *of, struct module *module)
{
    if (module == NULL && (module = calloc(1, sizeof *module)) == NULL)
        return NULL;
    module->handle = handle;
    module->library = library;
    module->of = of;
    if (!module->told)
        module->image = of != NULL ? of->image : egpu_image_number();
    if (!library)
        CALL(cuCtxGetCurrent, &module->context);
    return module;
}

static void publish(struct module *module)
{
    pthread_mutex_lock(&modules_lock);
    module->next = modules;
    modules = module;
    pthread_mutex_unlock(&modules_lock);
}

static void loaded(void *handle, bool library, const void *image, const char *path,
                   struct module *told)
{
    struct quiet quiet = egpu_quiet();
    struct module *module = add(handle, library, NULL, told);
    struct stat status;
    if (module != NULL && path != NULL) {
        module->path = realpath(path, NULL);
        if (module->path != NULL && stat(module->path, &status) == 0) {
            module->source = EGPU_SOURCE_FILE;
            module->mark = egpu_file_mark(&status);
            module->size = (uint64_t)status.st_size;
        }
    } else if (module != NULL && told == NULL && egpu_mine() && egpu_wire_descriptor() >= 0) {
        egpu_image_reference(module, image); /* detached too: links may come later */
    }
    if (module != NULL) {
        egpu_add(&egpu.stats->images, 1);
        publish(module);
    }
    egpu_loud(quiet);
}

#define LOADED(result, out, library, image, path, told)                                            \
    do {                                                                                           \
        if ((result) == CUDA_SUCCESS && (out) != NULL && watching())                               \
            loaded(*(out), library, image, path, told);                                            \
        else                                                                                       \
            egpu_ahead_refused(told);                                                              \
    } while (0)

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    CUresult result = CALL(cuModuleLoad, module, path);
    LOADED(result, module, false, NULL, path, NULL);
    return result;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct module *told = egpu_ahead(image);
    CUresult result = CALL(cuModuleLoadData, module, image);
    LOADED(result, module, false, image, NULL, told);
    return result;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options,
                            void **values)
{
    struct module *told = egpu_ahead(image);
    CUresult result = CALL(cuModuleLoadDataEx, module, image, count, options, values);
    LOADED(result, module, false, image, NULL, told);
    return result;
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    struct module *told = egpu_ahead(image);
    CUresult result = CALL(cuModuleLoadFatBinary, module, image);
    LOADED(result, module, false, image, NULL, told);
    return result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values,
                           unsigned jit_count, int *options, void **values, unsigned count)
{
    struct module *told = egpu_ahead(code);
    CUresult result =
        CALL(cuLibraryLoadData, library, code, jit, jit_values, jit_count, options, values, count);
    LOADED(result, library, true, code, NULL, told);
    return result;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count)
{
    CUresult result = CALL(cuLibraryLoadFromFile, library, path, jit, jit_values, jit_count,
                           options, values, count);
    LOADED(result, library, true, NULL, path, NULL);
    return result;
}

/* Entries go before the driver can give their handles' values to something new. */
static void unloading(void *handle)
{
    struct quiet quiet = egpu_quiet();
    struct module *module = egpu_module_of(handle);
    if (module != NULL) {
        egpu_snapshot_request(0);
        egpu_drop_module(module);
        struct egpu_image_gone message = {module->image};
        if (module->source == EGPU_SOURCE_SENT && egpu_mine()) /* the session keeps its bytes */
            egpu_wire_send(EGPU_IMAGE_GONE, 0, &message, sizeof message, NULL, NULL, 0, -1);
        else if (module->told && egpu_mine())
            egpu_wire_try(EGPU_IMAGE_GONE, &message, sizeof message, NULL, NULL, 0);
        pthread_mutex_lock(&modules_lock);
        for (struct module **at = &modules; *at != NULL;) {
            if (*at == module || (*at)->of == module)
                *at = (*at)->next; /* never freed: entries and readers point at it */
            else
                at = &(*at)->next;
        }
        pthread_mutex_unlock(&modules_lock);
    }
    egpu_loud(quiet);
}

CUresult cuModuleUnload(CUmodule module)
{
    if (watching())
        unloading(module);
    return CALL(cuModuleUnload, module);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    if (watching())
        unloading(library);
    return CALL(cuLibraryUnload, library);
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
    CUresult result = CALL(cuModuleGetFunction, f, module, name);
    if (result == CUDA_SUCCESS && f != NULL && watching())
        egpu_note(*f, HANDLE_FUNCTION, egpu_module_of(module), name);
    return result;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUresult result = CALL(cuLibraryGetKernel, kernel, library, name);
    if (result == CUDA_SUCCESS && kernel != NULL && watching())
        egpu_note(*kernel, HANDLE_KERNEL, egpu_module_of(library), name);
    return result;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CUresult result = CALL(cuLibraryGetModule, module, library);
    if (result == CUDA_SUCCESS && module != NULL && watching() && egpu_module_of(*module) == NULL) {
        struct module *of = egpu_module_of(library);
        struct module *made = of != NULL ? add(*module, false, of, NULL) : NULL;
        if (made != NULL)
            publish(made);
    }
    return result;
}

CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
    CUresult result = CALL(cuKernelGetFunction, f, kernel);
    if (result == CUDA_SUCCESS && f != NULL && watching()) {
        struct entry *parent = egpu_find(kernel);
        if (parent == NULL)
            parent = egpu_learn(kernel);
        if (parent != NULL && parent->kind == HANDLE_KERNEL) {
            struct entry *entry = egpu_note(*f, HANDLE_FUNCTION, parent->module, parent->name);
            if (entry != NULL)
                entry->kernel = parent;
        }
    }
    return result;
}

/* Attributes: recorded for a twin to come, applied to one that is there. */
static struct entry *known(void *handle)
{
    struct entry *entry = watching() ? egpu_find(handle) : NULL;
    return entry == NULL && watching() ? egpu_learn(handle) : entry;
}

CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
    CUresult result = CALL(cuFuncSetAttribute, f, attribute, value);
    struct entry *entry = result == CUDA_SUCCESS ? known(f) : NULL;
    if (entry != NULL) {
        egpu_set_attribute(entry, attribute, value);
        if (entry->kernel != NULL)
            egpu_set_attribute(entry->kernel, attribute, value);
    }
    return result;
}

CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
    CUresult result = CALL(cuKernelSetAttribute, attribute, value, kernel, device);
    struct entry *entry = result == CUDA_SUCCESS ? known(kernel) : NULL;
    if (entry != NULL)
        egpu_set_attribute(entry, attribute, value);
    return result;
}

CUresult cuFuncSetCacheConfig(CUfunction f, int config)
{
    CUresult result = CALL(cuFuncSetCacheConfig, f, config);
    struct entry *entry = result == CUDA_SUCCESS ? known(f) : NULL;
    if (entry != NULL) {
        egpu_set_cache_config(entry, config);
        if (entry->kernel != NULL)
            egpu_set_cache_config(entry->kernel, config);
    }
    return result;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
    CUresult result = CALL(cuKernelSetCacheConfig, kernel, config, device);
    struct entry *entry = result == CUDA_SUCCESS ? known(kernel) : NULL;
    if (entry != NULL)
        egpu_set_cache_config(entry, config);
    return result;
}
