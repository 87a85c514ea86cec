/* The launch table: handle -> entry -> one variant per context.
 *
 * Reading takes no lock: a slot's key is written once and stays, the entry behind it is published
 * with release and replaced when a handle's value is used again.  Entries, variants and outgrown
 * tables are never freed, so a reader never holds a stale pointer; a few hundred bytes per kernel
 * handle is the price. */
#include <stdlib.h>
#include <string.h>

#include "agent.h"

struct slot {
    _Atomic(void *) key;
    _Atomic(struct entry *) entry;
};

struct table {
    size_t mask, used;
    struct slot slots[];
};

enum { FIRST_SIZE = 4096 };

static _Atomic(struct table *) table;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static struct table *make_table(size_t size)
{
    struct table *made = calloc(1, sizeof *made + size * sizeof(struct slot));
    if (made != NULL)
        made->mask = size - 1;
    return made;
}

void egpu_table_init(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&egpu.resolved, &attributes);
    pthread_condattr_destroy(&attributes);
    atomic_store(&table, make_table(FIRST_SIZE));
}

/* The slot of a handle, or the free one where it would go. */
static struct slot *probe(struct table *in, void *handle)
{
    uint64_t hash = (uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15u;
    for (size_t i = hash >> 32;; i++) {
        struct slot *slot = &in->slots[i & in->mask];
        void *key = atomic_load_explicit(&slot->key, memory_order_acquire);
        if (key == handle || key == NULL)
            return slot;
    }
}

struct entry *egpu_find(void *handle)
{
    struct table *now = atomic_load_explicit(&table, memory_order_acquire);
    if (unlikely(handle == NULL || now == NULL))
        return NULL;
    return atomic_load_explicit(&probe(now, handle)->entry, memory_order_acquire);
}

/* Under the table lock: keeps the table at most half full. */
static struct table *room(void)
{
    struct table *old = atomic_load(&table);
    if (old == NULL || (old->used + 1) * 2 <= old->mask)
        return old;
    struct table *larger = make_table((old->mask + 1) * 2);
    if (larger == NULL)
        return NULL;
    for (size_t i = 0; i <= old->mask; i++) {
        void *key = atomic_load(&old->slots[i].key);
        if (key == NULL)
            continue;
        struct slot *slot = probe(larger, key);
        atomic_store(&slot->entry, atomic_load(&old->slots[i].entry));
        atomic_store(&slot->key, key);
        larger->used++;
    }
    atomic_store_explicit(&table, larger, memory_order_release);
    return larger;
}

/* A library and its module in some context hold the same kernels. */
static const struct module *root(const struct module *module)
{
    return module != NULL && module->of != NULL ? module->of : module;
}

static bool same(const struct entry *entry, enum handle_kind kind, const struct module *module,
                 const char *name)
{
    return entry != NULL && entry->kind == kind && root(entry->module) == root(module) &&
           (entry->name == NULL ? name == NULL : name != NULL && strcmp(entry->name, name) == 0);
}

/* A kernel's handle and its function in some context are one kernel. */
bool egpu_same_kernel(const struct entry *one, const struct entry *other)
{
    if (one == other || one == NULL || other == NULL)
        return one == other;
    return one->name != NULL && other->name != NULL && root(one->module) == root(other->module) &&
           strcmp(one->name, other->name) == 0;
}

static struct entry *make_entry(void *handle, enum handle_kind kind, struct module *module,
                                const char *name)
{
    struct entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return NULL;
    if (name != NULL && (entry->name = strdup(name)) == NULL) {
        free(entry);
        return NULL;
    }
    entry->handle = handle;
    entry->kind = kind;
    entry->module = module;
    entry->cache_config = -1;
    entry->stats = egpu.slots;
    return entry;
}

static void forget_variants(struct entry *entry)
{
    atomic_store(&entry->dropped, true);
    for (struct variant *v = atomic_load(&entry->variants); v != NULL; v = v->next)
        egpu_forget(v);
}

struct entry *egpu_note(void *handle, enum handle_kind kind, struct module *module,
                        const char *name)
{
    if (handle == NULL)
        return NULL;
    pthread_mutex_lock(&table_lock);
    struct table *now = room();
    struct slot *slot = now != NULL ? probe(now, handle) : NULL;
    struct entry *old = slot != NULL ? atomic_load(&slot->entry) : NULL;
    struct entry *entry = old;
    if (slot != NULL && !same(old, kind, module, name)) {
        entry = make_entry(handle, kind, module, name);
        if (entry != NULL) {
            atomic_store_explicit(&slot->entry, entry, memory_order_release);
            if (atomic_load(&slot->key) == NULL) {
                now->used++;
                atomic_store_explicit(&slot->key, handle, memory_order_release);
            }
        }
    } else {
        old = NULL;
    }
    pthread_mutex_unlock(&table_lock);
    if (old != NULL) /* the driver has used the handle's value again */
        forget_variants(old);
    return entry;
}

/* A handle first seen when it is launched: ask the driver what it is. */
struct entry *egpu_learn(void *handle)
{
    CUmodule module = NULL;
    CUlibrary library = NULL;
    const char *name = NULL;
    if (handle == NULL)
        return NULL;
    /* The names tell the kinds apart: cuFuncGetName refuses a CUkernel. */
    if (CALL(cuFuncGetName, &name, handle) == CUDA_SUCCESS) {
        if (CALL(cuFuncGetModule, &module, handle) != CUDA_SUCCESS)
            module = NULL;
        return egpu_note(handle, HANDLE_FUNCTION, egpu_module_of(module), name);
    }
    if (CALL(cuKernelGetName, &name, handle) == CUDA_SUCCESS) {
        if (CALL(cuKernelGetLibrary, &library, handle) != CUDA_SUCCESS)
            library = NULL;
        return egpu_note(handle, HANDLE_KERNEL, egpu_module_of(library), name);
    }
    return NULL; /* counted in slot 0 */
}

/* Slot 0 collects what finds no slot of its own. */
static void give_slot(struct entry *entry)
{
    if (entry->slot != 0)
        return;
    uint64_t next = __atomic_add_fetch(&egpu.stats->used, 1, __ATOMIC_RELAXED);
    if (next < egpu.stats->slots) {
        entry->slot = (uint32_t)next;
        entry->stats = &egpu.slots[next];
    }
}

static struct variant *variant_in(struct entry *entry, CUcontext context, bool captured)
{
    struct variant *v = atomic_load_explicit(&entry->variants, memory_order_acquire);
    bool any = entry->kind == HANDLE_FUNCTION; /* it belongs to one context */
    while (v != NULL &&
           (v->captured != captured ||
            (!any && atomic_load_explicit(&v->context, memory_order_relaxed) != context)))
        v = v->next;
    return v;
}

/* The variant of a handle in the current context, for direct launches or for those recorded into a
 * graph; NULL if there is no context (or no memory). */
struct variant *egpu_variant(struct entry *entry, bool captured)
{
    CUcontext context = NULL;
    struct variant *v;
    if (entry->kind == HANDLE_FUNCTION && (v = variant_in(entry, NULL, captured)) != NULL)
        return v;
    if (CALL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || context == NULL)
        return NULL;
    if ((v = variant_in(entry, context, captured)) != NULL)
        return v;
    struct quiet quiet = egpu_quiet();
    pthread_mutex_lock(&table_lock);
    if ((v = variant_in(entry, context, captured)) == NULL && (v = calloc(1, sizeof *v)) != NULL) {
        give_slot(entry);
        if (entry->kind == HANDLE_FUNCTION)
            entry->context = context;
        v->entry = entry;
        v->captured = captured;
        v->file = -1;
        atomic_store(&v->context, context);
        v->next = atomic_load(&entry->variants);
        atomic_store_explicit(&entry->variants, v, memory_order_release);
    }
    pthread_mutex_unlock(&table_lock);
    egpu_loud(quiet);
    return v;
}

/* Runs over a copy: forgetting calls the driver and must not hold the table lock. */
static void drop(bool (*condemned)(const struct entry *, const void *), const void *what)
{
    pthread_mutex_lock(&table_lock);
    struct table *now = atomic_load(&table);
    size_t size = now != NULL ? now->mask + 1 : 0, count = 0;
    struct entry **gone = size != 0 ? malloc(size * sizeof *gone) : NULL;
    for (size_t i = 0; gone != NULL && i < size; i++) {
        struct entry *entry = atomic_load(&now->slots[i].entry);
        if (entry != NULL && condemned(entry, what)) {
            atomic_store_explicit(&now->slots[i].entry, NULL, memory_order_release);
            gone[count++] = entry;
        }
    }
    pthread_mutex_unlock(&table_lock);
    for (size_t i = 0; i < count; i++)
        forget_variants(gone[i]);
    free(gone);
}

static bool of_module(const struct entry *entry, const void *module)
{
    const struct module *home = entry->module;
    if (entry->kind == HANDLE_TWIN)
        home = entry->owner->entry->module;
    return home != NULL && (home == module || home->of == module);
}

static bool of_context(const struct entry *entry, const void *context)
{
    if (entry->kind == HANDLE_TWIN)
        return atomic_load(&entry->owner->context) == context;
    return entry->kind == HANDLE_FUNCTION && entry->context == context;
}

void egpu_drop_module(struct module *module)
{
    drop(of_module, module);
}

/* Kernels outlive contexts: only their variants go. */
void egpu_drop_context(CUcontext context)
{
    drop(of_context, context);
    pthread_mutex_lock(&table_lock);
    struct table *now = atomic_load(&table);
    for (size_t i = 0; now != NULL && i <= now->mask; i++) {
        struct entry *entry = atomic_load(&now->slots[i].entry);
        struct variant *v = entry != NULL ? atomic_load(&entry->variants) : NULL;
        for (; v != NULL; v = v->next)
            if (atomic_load(&v->context) == context)
                egpu_forget(v);
    }
    pthread_mutex_unlock(&table_lock);
}
