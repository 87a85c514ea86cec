/* Loading a twin: module, function, attributes, globals.  Any failure gives a reason and the
 * original keeps running. */
#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "agent.h"

/* Attributes that change how a kernel is launched; read from the original too, because a program
 * can set them through calls that no hook sees. */
static const int copied[] = {
    CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CU_FUNC_PREFERRED_SHARED_MEMORY_CARVEOUT,
    CU_FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    CU_FUNC_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
};

static _Thread_local char why[512];

static const char *because(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *because(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    return why;
}

/* The driver trusts an image's header; a broken one must not make it read outside. */
bool egpu_sound(const unsigned char *image, uint64_t size)
{
    Elf64_Ehdr head;
    if (size < 4 || memcmp(image, ELFMAG, SELFMAG) != 0)
        return size >= 4 && image[size - 1] == '\0' && strstr((const char *)image, ".version");
    if (size < sizeof head)
        return false;
    memcpy(&head, image, sizeof head);
    if (head.e_shoff > size || head.e_shentsize != sizeof(Elf64_Shdr) || head.e_shnum == 0 ||
        (uint64_t)head.e_shnum * sizeof(Elf64_Shdr) > size - head.e_shoff ||
        head.e_phoff > size || (uint64_t)head.e_phnum * head.e_phentsize > size - head.e_phoff)
        return false;
    for (unsigned i = 0; i < head.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + head.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type != SHT_NOBITS &&
            (section.sh_offset > size || section.sh_size > size - section.sh_offset))
            return false;
    }
    return true;
}

static CUmodule original_module(const struct entry *entry)
{
    CUmodule module = NULL;
    CUlibrary library = NULL;
    if (entry->kind == HANDLE_FUNCTION) {
        if (CALL(cuFuncGetModule, &module, entry->handle) == CUDA_SUCCESS)
            return module;
        if (entry->module != NULL && !entry->module->library)
            return entry->module->handle;
    }
    if (entry->module != NULL && entry->module->library)
        library = entry->module->handle;
    else if (entry->kind == HANDLE_KERNEL)
        CALL(cuKernelGetLibrary, &library, entry->handle);
    if (library == NULL || CALL(cuLibraryGetModule, &module, library) != CUDA_SUCCESS)
        return NULL;
    return module;
}

/* What the TWIN message says of variables: names, and how the twin gets their addresses. */
struct shared {
    uint32_t count;
    const char *names, *end;
    const char *table;       /* variable of the twin that takes them, or "" */
    const char *patches;     /* or places in the image, rows of struct egpu_patch */
    uint64_t *addresses;     /* of the original module's variables */
};

/* Asks the driver for the addresses of the original module's variables. */
static const char *find_globals(const struct entry *entry, struct shared *shared)
{
    CUmodule module = original_module(entry);
    const char *names = shared->names;
    if (module == NULL)
        return because("the module of %s is not known", entry->name);
    for (uint32_t i = 0; i < shared->count; i++) {
        CUdeviceptr address;
        size_t size;
        const char *stop =
            names < shared->end ? memchr(names, '\0', (size_t)(shared->end - names)) : NULL;
        if (stop == NULL)
            return because("malformed list of globals of %s", entry->name);
        if (CALL(cuModuleGetGlobal_v2, &address, &size, module, names) != CUDA_SUCCESS)
            return because("%s uses the variable %s, which the driver does not name", entry->name,
                           names);
        shared->addresses[i] = address;
        names = stop + 1;
    }
    return NULL;
}

/* Machine code: the addresses go into its constant bank before it is loaded. */
static const char *patch(unsigned char *image, uint64_t size, const struct entry *entry,
                         const struct shared *shared)
{
    for (uint32_t i = 0; i < shared->count; i++) {
        struct egpu_patch row;
        memcpy(&row, shared->patches + i * sizeof row, sizeof row);
        if (row.offset > size || size - row.offset < sizeof(uint64_t))
            return because("the twin of %s has a variable outside of its image", entry->name);
        uint64_t address = shared->addresses[i] + row.addend;
        memcpy(image + row.offset, &address, sizeof address);
    }
    return NULL;
}

static const char *load(struct twin *twin, int file, uint64_t size, const struct entry *entry,
                        const struct shared *shared)
{
    const char *name = entry->name;
    struct stat status;
    char log[256] = "";
    int options[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[2] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    if (size == 0 || fstat(file, &status) != 0 || (uint64_t)status.st_size < size)
        return because("the twin of %s is cut short", name);
    void *image = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (image == MAP_FAILED)
        return because("the twin of %s cannot be mapped", name);
    const char *failure = NULL;
    if (!egpu_sound(image, size)) {
        failure = because("the twin of %s is malformed", name);
    } else if (shared->patches == NULL ||
               (failure = patch(image, size, entry, shared)) == NULL) {
        CUresult result = CALL(cuModuleLoadDataEx, &twin->module, image, 2, options, values);
        if (result != CUDA_SUCCESS) {
            twin->module = NULL;
            failure = because("the driver does not load the twin of %s (error %d) %s", name,
                              result, log);
        }
    }
    munmap(image, size);
    return failure;
}

/* PTX: the twin reads them from a variable of its own. */
static const char *fill_table(struct twin *twin, const struct entry *entry,
                              const struct shared *shared)
{
    CUdeviceptr place;
    size_t room, size = shared->count * sizeof *shared->addresses;
    if (CALL(cuModuleGetGlobal_v2, &place, &room, twin->module, shared->table) != CUDA_SUCCESS ||
        room < size)
        return because("the twin of %s has no room for %u globals", entry->name, shared->count);
    if (CALL(cuMemcpyHtoDAsync_v2, place, shared->addresses, size, twin->arena->stream) !=
            CUDA_SUCCESS ||
        CALL(cuStreamSynchronize, twin->arena->stream) != CUDA_SUCCESS)
        return because("the globals of %s cannot be copied", entry->name);
    return NULL;
}

static const char *replay(struct twin *twin, const struct entry *entry)
{
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        int wanted, now;
        if (CALL(cuFuncGetAttribute, &wanted, copied[i], twin->original) == CUDA_SUCCESS &&
            CALL(cuFuncGetAttribute, &now, copied[i], twin->function) == CUDA_SUCCESS &&
            wanted != now &&
            CALL(cuFuncSetAttribute, twin->function, copied[i], wanted) != CUDA_SUCCESS)
            return because("attribute %d of %s cannot be set on its twin", copied[i], entry->name);
    }
    for (int i = 0; i < CU_FUNC_ATTRIBUTES; i++)
        if ((entry->set >> i & 1) != 0 &&
            CALL(cuFuncSetAttribute, twin->function, i, entry->value[i]) != CUDA_SUCCESS)
            return because("attribute %d of %s cannot be set on its twin", i, entry->name);
    if (entry->cache_config >= 0)
        CALL(cuFuncSetCacheConfig, twin->function, entry->cache_config); /* a preference only */
    return NULL;
}

static const char *fill(struct twin *twin, const struct variant *v, uint64_t size,
                        struct shared *shared)
{
    const struct entry *entry = v->entry;
    const char *failure = shared->count != 0 ? find_globals(entry, shared) : NULL;
    if (failure == NULL)
        failure = load(twin, v->file, size, entry, shared);
    if (failure != NULL)
        return failure;
    if (CALL(cuModuleGetFunction, &twin->function, twin->module, entry->name) != CUDA_SUCCESS)
        return because("the twin has no kernel %s", entry->name);
    twin->original = entry->handle;
    if (entry->kind == HANDLE_KERNEL &&
        CALL(cuKernelGetFunction, &twin->original, entry->handle) != CUDA_SUCCESS)
        return because("%s has no function in this context", entry->name);
    CALL(cuFuncLoad, twin->function); /* lazy loading must not happen at the launch */
    if (CALL(cuFuncGetAttribute, &twin->max_threads, CU_FUNC_MAX_THREADS_PER_BLOCK,
             twin->function) != CUDA_SUCCESS)
        return because("the twin of %s tells no limits", entry->name);
    failure = replay(twin, entry);
    if (failure == NULL && shared->count != 0 && shared->patches == NULL)
        failure = fill_table(twin, entry, shared);
    return failure;
}

/* On the launching thread, whose context is the variant's.  NULL, or why there is no twin. */
const char *egpu_build(struct variant *v, struct arena *arena, struct twin **out)
{
    struct egpu_twin reply;
    const char *texts[3], *failure = NULL;
    char table[128] = "";
    const struct module *home = v->entry->module;
    memcpy(&reply, (char *)v->packet + sizeof(struct egpu_header), sizeof reply);
    uint32_t sizes[3] = {reply.globals_size, reply.table_size, reply.patches_size};
    egpu_wire_texts(v->packet, sizeof reply, sizes, 3, texts); /* checked on arrival */
    bool patched = reply.patches_size != 0;
    if (reply.table_size >= sizeof table || reply.parameters > MAX_PARAMETERS ||
        reply.hidden_offset > MAX_PACKED || reply.globals_count > MAX_GLOBALS ||
        (patched && reply.patches_size != reply.globals_count * sizeof(struct egpu_patch)))
        return because("the twin of %s exceeds a limit of the agent", v->entry->name);
    memcpy(table, texts[1], reply.table_size);
    CUcontext now = NULL;
    CALL(cuCtxGetCurrent, &now);
    if (now != atomic_load(&v->context) ||
        (home != NULL && !home->library && home->context != now))
        return because("%s is launched from another context than its module's", v->entry->name);
    struct shared shared = {
        reply.globals_count, texts[0], texts[0] + reply.globals_size, table,
        patched ? texts[2] : NULL, calloc(reply.globals_count + 1, sizeof(uint64_t))};
    struct twin *twin = calloc(1, sizeof *twin);
    if (twin == NULL || shared.addresses == NULL) {
        free(twin);
        free(shared.addresses);
        return because("out of memory");
    }
    twin->hidden_offset = reply.hidden_offset;
    twin->parameters = reply.parameters;
    twin->kernel_id = reply.kernel_id;
    twin->allow_occupancy = reply.allow_occupancy != 0;
    twin->arena = arena;
    int mode = egpu_relax();
    if (egpu_arena_prepare(arena, &failure) == 0)
        failure = fill(twin, v, reply.size, &shared);
    free(shared.addresses);
    if (failure != NULL && twin->module != NULL)
        CALL(cuModuleUnload, twin->module);
    egpu_restore(mode);
    if (failure != NULL) {
        egpu_say("%s; it runs unprobed", failure);
        free(twin);
        return failure;
    }
    *out = twin;
    return NULL;
}
