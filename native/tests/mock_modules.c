/* Images, libraries, and the functions in them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mock.h"

static uint64_t last_address; /* that cuModuleGetGlobal gave */

/* The text of an image, NULL where there is none. */
static const char *text_of(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == 0x466243b1) { /* a wrapper */
        memcpy(&image, (const char *)image + 8, sizeof image);
        if ((uintptr_t)image < 4096)
            return NULL;
        memcpy(&magic, image, sizeof magic);
    }
    if (magic != 0xba55ed50)
        return image;
    uint64_t size;
    memcpy(&size, (const char *)image + 8, sizeof size);
    return size < 1 << 20 ? (const char *)image + 16 : NULL;
}

static struct module *parse(const void *data)
{
    struct module *m = calloc(1, sizeof *m);
    const char *image = text_of(data);
    if (image == NULL || image[0] != '.' || strstr(image, "broken") != NULL) {
        free(m);
        return NULL;
    }
    for (const char *at = image; (at = strstr(at, "// ")) != NULL; at++) {
        struct entry *e = &m->entry[m->entries];
        if (sscanf(at, "// entry %63s params %d regs %d occ %d max %d twin %d", e->name, &e->params,
                   &e->regs, &e->occupancy, &e->max_threads, &e->twin) == 6)
            m->entries++;
        else if (sscanf(at, "// global %63s", m->global[m->globals]) == 1)
            m->globals++;
    }
    const char *patched = strstr(image, "// patched ");
    if (patched != NULL) { /* 8 bytes that the agent was to fill in, then a NUL */
        uint64_t address;
        memcpy(&address, patched + strlen("// patched "), sizeof address);
        mock_note("patched %lld behind the original", (long long)(address - last_address));
    }
    m->context = mock_current;
    return m;
}

static struct function *make(struct module *m, struct library *l, const char *name)
{
    for (int i = 0; i < m->entries; i++)
        if (strcmp(m->entry[i].name, name) == 0) {
            struct function *f = calloc(1, sizeof *f);
            f->tag = l != NULL ? TAG_KERNEL : TAG_FUNCTION;
            f->entry = &m->entry[i];
            f->module = m;
            f->library = l;
            f->context = mock_current;
            return f;
        }
    return NULL;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct module *m = parse(image);
    mock_note("load module mode %d captures %d", mock_capture_mode, mock_captures);
    *module = (CUmodule)m;
    return m != NULL ? 0 : 200;
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options,
                                void **values)
{
    (void)count, (void)options, (void)values;
    if (mock_failing("cuModuleLoadDataEx"))
        return 218;
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    char image[4096] = "";
    int file = open(path, O_RDONLY);
    if (file < 0 || read(file, image, sizeof image - 1) < 0)
        return 301;
    close(file);
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleUnload(CUmodule module)
{
    (void)module; /* handles stay valid memory: a test then sees stale use in the log */
    mock_note("unload module");
    return 0;
}

API CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
    *f = (CUfunction)make((struct module *)module, NULL, name);
    return *f != NULL ? 0 : 500;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module,
                                  const char *name)
{
    struct module *m = (struct module *)module;
    for (int i = 0; i < m->globals; i++)
        if (strcmp(m->global[i], name) == 0) {
            *address = (CUdeviceptr)(uintptr_t)m->storage[i];
            *size = sizeof m->storage[i];
            last_address = *address;
            return 0;
        }
    return 500;
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count)
{
    struct library *l = calloc(1, sizeof *l);
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    const char *text = text_of(code);
    if (text == NULL || strstr(text, "broken") != NULL) {
        free(l);
        return 200;
    }
    l->image = strdup(text);
    *library = (CUlibrary)l;
    return 0;
}

static struct module *in_context(struct library *l)
{
    for (int i = 0; i < 4; i++) {
        if (l->modules[i] == NULL)
            l->modules[i] = parse(l->image);
        if (l->modules[i]->context == mock_current)
            return l->modules[i];
    }
    return NULL;
}

API CUresult cuLibraryUnload(CUlibrary library)
{
    (void)library;
    mock_note("unload library");
    return 0;
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    struct library *l = (struct library *)library;
    *kernel = (CUkernel)make(in_context(l), l, name);
    return *kernel != NULL ? 0 : 500;
}

API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    *module = (CUmodule)in_context((struct library *)library);
    return *module != NULL ? 0 : 201;
}

API CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
    struct function *k = (struct function *)kernel;
    mock_note("function of kernel %s mode %d", k->entry->name, mock_capture_mode);
    if (k->tag != TAG_KERNEL)
        return 400;
    *f = (CUfunction)make(in_context(k->library), NULL, k->entry->name);
    memcpy(((struct function *)*f)->attribute, k->attribute, sizeof k->attribute);
    return 0;
}

API CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    struct function *k = (struct function *)kernel;
    *name = k->entry->name;
    return k->tag == TAG_KERNEL ? 0 : 400;
}

API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    *library = (CUlibrary)((struct function *)kernel)->library;
    return *library != NULL ? 0 : 400;
}

API CUresult cuFuncGetName(const char **name, CUfunction f)
{
    *name = ((struct function *)f)->entry->name;
    return ((struct function *)f)->tag == TAG_FUNCTION ? 0 : 400;
}

API CUresult cuFuncGetModule(CUmodule *module, CUfunction f)
{
    *module = (CUmodule)((struct function *)f)->module;
    return ((struct function *)f)->tag == TAG_FUNCTION ? 0 : 400;
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f)
{
    struct function *x = (struct function *)f;
    *value = attribute == CU_FUNC_MAX_THREADS_PER_BLOCK ? x->entry->max_threads
             : attribute == CU_FUNC_NUM_REGS            ? x->entry->regs
                                                        : x->attribute[attribute];
    return x->tag == TAG_FUNCTION ? 0 : 400;
}

API CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
    struct function *x = (struct function *)f;
    x->attribute[attribute] = value;
    mock_note("attribute %s twin %d: %d = %d", x->entry->name, x->entry->twin, attribute, value);
    return 0;
}

API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}

API CUresult cuFuncSetCacheConfig(CUfunction f, int config)
{
    struct function *x = (struct function *)f;
    mock_note("cache %s twin %d: %d", x->entry->name, x->entry->twin, config);
    return 0;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads,
                                                         size_t shared)
{
    (void)shared;
    *blocks = ((struct function *)f)->entry->occupancy / (threads > 256 ? 2 : 1);
    return 0;
}

API CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size)
{
    const struct entry *e = ((struct function *)f)->entry;
    if (index >= (size_t)(e->params + e->twin))
        return 1;
    *offset = index * 8;
    *size = index < (size_t)e->params ? 8 : sizeof(struct block);
    return 0;
}
