/* First launch of a kernel: ask the session, wait as long as it allows, settle. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

static struct variant *pending; /* asked, not answered; under the resolve lock */
static uint32_t last_request;

static void unlink_pending(struct variant *v)
{
    for (struct variant **at = &pending; *at != NULL; at = &(*at)->pending)
        if (*at == v) {
            *at = v->pending;
            v->pending = NULL;
            return;
        }
}

static void drop_reply(struct variant *v)
{
    if (v->file >= 0)
        close(v->file);
    v->file = -1;
    free(v->packet);
    v->packet = NULL;
}

static void settle(struct variant *v, struct twin *twin, uint32_t reason)
{
    drop_reply(v);
    atomic_store(&v->twin, twin);
    atomic_store(&v->reason, reason);
    v->state = RESOLVE_SETTLED;
    atomic_store_explicit(&v->settled, v->asked, memory_order_release);
    pthread_cond_broadcast(&egpu.resolved);
}

void egpu_wake(void)
{
    pthread_mutex_lock(&egpu.resolve_lock);
    pthread_cond_broadcast(&egpu.resolved);
    pthread_mutex_unlock(&egpu.resolve_lock);
}

static bool ask(struct variant *v, uint32_t epoch)
{
    struct entry *entry = v->entry;
    struct module *module = entry->module;
    struct arena *arena = egpu_arena(atomic_load(&v->context), false);
    if (module != NULL && module->of != NULL)
        module = module->of;
    v->asked = epoch + 1;
    v->deadline = egpu_now() + atomic_load(&egpu.twin_wait_ms) * 1000000ull;
    if (entry->name == NULL || arena == NULL || strlen(entry->name) > NAME_LIMIT) {
        settle(v, NULL, EGPU_REASON_REFUSED);
        return true;
    }
    struct egpu_resolve message = {
        .slot = entry->slot, .epoch = epoch, .arena = arena->number,
        .ordinal = arena->device.ordinal, .major = arena->device.major,
        .minor = arena->device.minor, .sm_count = arena->device.sm_count,
        .captured = v->captured,
    };
    const char *texts[3] = {entry->name, "", arena->device.name};
    if (module != NULL) {
        message.image = module->image;
        message.offset = module->offset;
        message.size = module->size;
        message.source = module->source;
        if (module->source == EGPU_SOURCE_FILE) {
            texts[1] = module->path;
            if (!egpu_image_unchanged(module))
                message.source = EGPU_SOURCE_CHANGED;
        }
    }
    size_t sizes[3] = {strlen(texts[0]), strlen(texts[1]), strlen(texts[2])};
    message.kernel_size = (uint32_t)sizes[0];
    message.path_size = (uint32_t)sizes[1];
    message.name_size = (uint32_t)sizes[2];
    drop_reply(v);
    unlink_pending(v);
    v->request = ++last_request;
    v->state = RESOLVE_ASKED;
    v->pending = pending;
    pending = v;
    if (egpu_wire_send(EGPU_RESOLVE, v->request, &message, sizeof message, texts, sizes, 3, -1) == 0)
        return true;
    unlink_pending(v);
    v->state = RESOLVE_NEW;
    return false;
}

/* The kernel's own function is needed for its twin and by its launch, and is loaded as late as it is
 * first asked for: while the session works the driver does that.  Under the resolve lock, which is
 * let go meanwhile; what goes wrong is said when the twin is made. */
static void load_original(const struct variant *v)
{
    CUcontext now = NULL;
    CUfunction function;
    if (v->entry->kind != HANDLE_KERNEL || v->captured || atomic_load(&egpu.twin_wait_ms) == 0)
        return;
    pthread_mutex_unlock(&egpu.resolve_lock);
    int mode = egpu_relax();
    if (CALL(cuCtxGetCurrent, &now) == CUDA_SUCCESS && now == atomic_load(&v->context))
        CALL(cuKernelGetFunction, &function, v->entry->handle);
    egpu_restore(mode);
    pthread_mutex_lock(&egpu.resolve_lock);
}

/* False when the time this kernel may wait is over. */
static bool wait_more(const struct variant *v)
{
    if (egpu_now() >= v->deadline)
        return false;
    struct timespec until = {(time_t)(v->deadline / 1000000000u),
                             (long)(v->deadline % 1000000000u)};
    pthread_cond_timedwait(&egpu.resolved, &egpu.resolve_lock, &until);
    return true;
}

static void report(const struct variant *v, uint32_t kernel_id, const struct twin *twin,
                   const char *why)
{
    struct egpu_twin_state message = {.kernel_id = kernel_id, .error = why != NULL,
                                      .slot = v->entry->slot};
    const char *text = why != NULL ? why : "";
    size_t size = strlen(text);
    int value[6] = {0};
    if (twin != NULL) {
        static const int attributes[3] = {CU_FUNC_NUM_REGS, CU_FUNC_SHARED_SIZE_BYTES,
                                          CU_FUNC_LOCAL_SIZE_BYTES};
        for (int i = 0; i < 3; i++) {
            CALL(cuFuncGetAttribute, &value[2 * i], attributes[i], twin->original);
            CALL(cuFuncGetAttribute, &value[2 * i + 1], attributes[i], twin->function);
        }
        egpu_add(&egpu.stats->twins, 1);
    }
    message.registers = (uint32_t)value[0];
    message.twin_registers = (uint32_t)value[1];
    message.shared = (uint32_t)value[2];
    message.twin_shared = (uint32_t)value[3];
    message.local = (uint32_t)value[4];
    message.twin_local = (uint32_t)value[5];
    message.reason_size = (uint32_t)size;
    egpu_wire_send(EGPU_TWIN_STATE, 0, &message, sizeof message, &text, &size, 1, -1);
}

/* Under the resolve lock, which is let go while the driver works.  The twin handle is noted before
 * anyone can launch it, so that graph nodes read back always find it. */
static void build(struct variant *v, struct arena *arena)
{
    uint32_t asked = v->asked;
    struct twin *twin = NULL;
    struct egpu_twin reply;
    memcpy(&reply, (char *)v->packet + sizeof(struct egpu_header), sizeof reply);
    v->state = RESOLVE_BUILDING;
    pthread_mutex_unlock(&egpu.resolve_lock);
    const char *why = egpu_build(v, arena, &twin);
    if (twin != NULL) {
        struct entry *note = egpu_note(twin->function, HANDLE_TWIN, NULL, NULL);
        if (note != NULL)
            note->owner = v;
    }
    report(v, reply.kernel_id, twin, why);
    bool no_arena = atomic_load(&arena->state) == ARENA_FAILED;
    pthread_mutex_lock(&egpu.resolve_lock);
    if (atomic_load(&v->context) == NULL)
        twin = NULL; /* unloaded meanwhile */
    v->asked = asked;
    settle(v, twin, no_arena ? EGPU_REASON_ARENA : EGPU_REASON_REFUSED);
}

static struct twin *resolve(struct variant *v, uint32_t *reason)
{
    for (;;) {
        uint32_t epoch = atomic_load(&egpu.epoch);
        if (atomic_load(&egpu.phase) != PHASE_LIVE || atomic_load(&v->context) == NULL) {
            *reason = EGPU_REASON_DETACHED;
            return NULL;
        }
        if (v->asked != epoch + 1 && v->state != RESOLVE_BUILDING) {
            if (!ask(v, epoch)) {
                *reason = EGPU_REASON_DETACHED;
                return NULL;
            }
            if (v->state == RESOLVE_ASKED) {
                load_original(v);
                continue; /* anything may have happened */
            }
        }
        if (v->state == RESOLVE_SETTLED) {
            *reason = atomic_load(&v->reason);
            return atomic_load(&v->twin);
        }
        if (v->state == RESOLVE_TWIN) {
            struct arena *arena = egpu_arena(atomic_load(&v->context), true);
            int state = arena != NULL ? atomic_load(&arena->state) : ARENA_FAILED;
            if (state == ARENA_ANSWERED || state == ARENA_READY) {
                build(v, arena);
                continue;
            }
            if (state != ARENA_ASKED) {
                settle(v, NULL, EGPU_REASON_ARENA);
                continue;
            }
        }
        if (!wait_more(v)) {
            *reason = EGPU_REASON_NOT_READY;
            return atomic_load(&v->twin); /* of an earlier epoch, if there is one */
        }
    }
}

struct twin *egpu_twin(struct entry *entry, struct variant *v, uint32_t *reason)
{
    if (atomic_load_explicit(&egpu.phase, memory_order_relaxed) != PHASE_LIVE) {
        *reason = EGPU_REASON_DETACHED;
        return NULL;
    }
    if (likely(egpu_settled(v))) {
        *reason = atomic_load_explicit(&v->reason, memory_order_relaxed);
        return atomic_load_explicit(&v->twin, memory_order_relaxed);
    }
    (void)entry;
    struct twin *twin = NULL;
    struct quiet quiet = egpu_quiet();
    if (egpu_mine()) {
        uint64_t since = egpu_now();
        pthread_mutex_lock(&egpu.resolve_lock);
        twin = resolve(v, reason);
        pthread_mutex_unlock(&egpu.resolve_lock);
        bool unmatched = twin == NULL && *reason == EGPU_REASON_UNMATCHED;
        egpu_add(unmatched ? &egpu.stats->asks : &egpu.stats->waits, 1);
        egpu_add(unmatched ? &egpu.stats->ask_ns : &egpu.stats->wait_ns, egpu_now() - since);
    } else {
        *reason = EGPU_REASON_DETACHED;
    }
    egpu_loud(quiet);
    return twin;
}

static bool take_twin(struct variant *v, const unsigned char *packet, size_t size, int file)
{
    struct egpu_twin reply;
    const char *texts[3];
    size_t fixed = sizeof(struct egpu_header) + sizeof reply;
    if (size < fixed || file < 0)
        return false;
    memcpy(&reply, packet + sizeof(struct egpu_header), sizeof reply);
    uint32_t sizes[3] = {reply.globals_size, reply.table_size, reply.patches_size};
    if (!egpu_wire_texts(packet, sizeof reply, sizes, 3, texts) ||
        (v->packet = malloc(size)) == NULL)
        return false;
    memcpy(v->packet, packet, size);
    v->file = file;
    v->state = RESOLVE_TWIN;
    pthread_cond_broadcast(&egpu.resolved);
    return true;
}

/* An answer to RESOLVE; owns the file. */
void egpu_reply(const unsigned char *packet, size_t size, int file)
{
    struct egpu_header header;
    memcpy(&header, packet, sizeof header);
    pthread_mutex_lock(&egpu.resolve_lock);
    struct variant *v = pending;
    while (v != NULL && v->request != header.request)
        v = v->pending;
    if (v != NULL) {
        unlink_pending(v);
        if (header.kind == EGPU_TWIN && take_twin(v, packet, size, file)) {
            file = -1;
        } else if (header.kind == EGPU_UNMATCHED) {
            atomic_store_explicit(&v->entry->unmatched, v->asked, memory_order_release);
            settle(v, NULL, EGPU_REASON_UNMATCHED);
        } else {
            if (header.kind == EGPU_TWIN)
                egpu_say("malformed twin of kernel %s; it runs unprobed", v->entry->name);
            settle(v, NULL, EGPU_REASON_REFUSED);
        }
    }
    pthread_mutex_unlock(&egpu.resolve_lock);
    if (file >= 0)
        close(file);
}

/* The module or context of a variant is going away: nothing may use it any more. */
void egpu_forget(struct variant *v)
{
    pthread_mutex_lock(&egpu.resolve_lock);
    unlink_pending(v);
    if (v->state != RESOLVE_BUILDING) /* else its thread is reading it, and drops it */
        drop_reply(v);
    atomic_store(&v->twin, NULL);
    atomic_store(&v->context, NULL);
    atomic_store(&v->settled, 0);
    pthread_cond_broadcast(&egpu.resolved);
    pthread_mutex_unlock(&egpu.resolve_lock);
}
