/* The agent's thread: all signals blocked, relaxed capture mode, the only receiver. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

enum { FINISH_NONE, FINISH_CLAIMED, FINISH_WANTED, FINISH_DONE };

static _Atomic int running;
static _Atomic int finish_state;
static _Atomic(CUcontext) finish_context;
static _Atomic int abandoned; /* nobody waits for the finish that is under way */
static unsigned char packet[EGPU_PACKET_LIMIT];

static void lost(void)
{
    egpu_say("the session is gone; the rest runs unprobed");
    egpu_stop();
    egpu_wake();
    egpu_enable_all(0);
    egpu_wire_close();
}

static void epoch(size_t size)
{
    struct egpu_epoch message;
    int stopped = PHASE_STOPPED;
    if (size != sizeof(struct egpu_header) + sizeof message)
        return;
    memcpy(&message, packet + sizeof(struct egpu_header), sizeof message);
    atomic_store(&egpu.twin_wait_ms, message.twin_wait_ms);
    atomic_store(&egpu.ahead, message.ahead != 0);
    atomic_store(&egpu.epoch, message.epoch);
    egpu_enable_all(1);
    atomic_compare_exchange_strong(&egpu.phase, &stopped, PHASE_LIVE);
    egpu_wake();
}

static void dispatch(size_t size, int *files)
{
    struct egpu_header header;
    memcpy(&header, packet, sizeof header);
    switch (header.kind) {
    case EGPU_TWIN:
    case EGPU_UNMATCHED:
    case EGPU_REFUSED:
        egpu_reply(packet, size, files[0]);
        files[0] = -1;
        break;
    case EGPU_ARENA:
    case EGPU_ARENA_REFUSED:
        egpu_arena_answer(packet, size, files);
        break;
    case EGPU_EPOCH:
        epoch(size);
        break;
    case EGPU_SNAPSHOT:
        egpu_snapshot_request(header.request);
        break;
    case EGPU_WRITE:
    case EGPU_OPERATOR:
    case EGPU_OPERATE:
        egpu_command(packet, size, files);
        break;
    case EGPU_HOST_DONE:
        egpu_host_done(header.request);
        break;
    case EGPU_DETACH:
        egpu_stop();
        egpu_wake();
        egpu_enable_all(0);
        break;
    default: /* a later version may say more; nothing here depends on it */
        break;
    }
    for (int i = 0; i < (int)EGPU_FILES_LIMIT; i++)
        if (files[i] >= 0)
            close(files[i]);
}

/* Waits for the device outside every lock: a workload that never ends must not hold them. */
static bool finish(void)
{
    CUcontext only = atomic_load(&finish_context);
    egpu_wake();
    for (struct arena *arena = egpu_arenas(); arena != NULL; arena = arena->next) {
        if (atomic_load(&arena->state) != ARENA_READY || (only && arena->context != only))
            continue;
        egpu_commands(arena); /* begun before the device is waited for: the snapshot has it */
        if (CALL(cuCtxSetCurrent, arena->context) == CUDA_SUCCESS)
            if (CALL(cuCtxSynchronize) == CUDA_SUCCESS)
                egpu_clock_end(arena);
        egpu_commands(arena);
        egpu_snapshot_now(arena, egpu_now() + egpu.exit_wait_ms * 1000000ull, only == NULL);
    }
    atomic_store(&finish_state, atomic_exchange(&abandoned, 0) ? FINISH_NONE : FINISH_DONE);
    return only == NULL;
}

/* False: no more work for this thread. */
static bool turn(void)
{
    int files[EGPU_FILES_LIMIT];
    size_t size;
    uint64_t sleep = egpu_arena_tick(egpu_now());
    if (atomic_load(&finish_state) == FINISH_WANTED)
        return !finish();
    if (sleep < 1000000)
        nanosleep(&(struct timespec){0, (long)sleep}, NULL);
    int got = egpu_wire_receive(packet, &size, files, (int)(sleep / 1000000));
    while (got == 1) {
        dispatch(size, files);
        got = egpu_wire_receive(packet, &size, files, 0);
    }
    if (got < 0)
        lost();
    return got >= 0;
}

static void *serve(void *unused)
{
    (void)unused;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    egpu_relax(); /* for good: this thread captures nothing */
    /* Linux lets sleeps take 50 us longer, as much as there is between turns that copy records. */
    prctl(PR_SET_TIMERSLACK, 5000ul, 0ul, 0ul, 0ul);
    while (turn())
        continue;
    atomic_store(&running, 0);
    return NULL;
}

int egpu_thread_start(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    if (pthread_attr_init(&attributes) != 0)
        return -1;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&running, 1);
    int error = pthread_create(&thread, &attributes, serve, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0)
        atomic_store(&running, 0);
    else
        pthread_setname_np(thread, "egpu");
    return error;
}

static bool any_ready(CUcontext only)
{
    for (struct arena *arena = egpu_arenas(); arena != NULL; arena = arena->next)
        if (atomic_load(&arena->state) == ARENA_READY && (!only || arena->context == only))
            return true;
    return false;
}

/* The thread synchronises and takes the last snapshot; this one waits, but not for ever.  Uses
 * nothing that a signal handler must not use. */
void egpu_finish(CUcontext only)
{
    const struct timespec nap = {0, 100000};
    uint64_t deadline = egpu_now() + egpu.exit_wait_ms * 1000000ull;
    int none = FINISH_NONE;
    if (!any_ready(only))
        return;
    while (atomic_load(&running) &&
           !atomic_compare_exchange_strong(&finish_state, &none, FINISH_CLAIMED)) {
        none = FINISH_NONE;
        if (egpu_now() > deadline)
            return;
        nanosleep(&nap, NULL);
    }
    atomic_store(&finish_context, only);
    atomic_store(&finish_state, FINISH_WANTED);
    while (atomic_load(&running) && atomic_load(&finish_state) != FINISH_DONE) {
        if (egpu_now() > deadline) {
            egpu_say("the device did not finish in %u ms; counts are those of the last snapshot",
                     egpu.exit_wait_ms);
            atomic_store(&abandoned, 1); /* the thread clears the state when it gets there */
            return;
        }
        nanosleep(&nap, NULL);
    }
    atomic_store(&finish_state, FINISH_NONE);
}
