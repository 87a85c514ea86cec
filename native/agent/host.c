/* Programs that the session runs on the host around launch calls: the thread asks, waits, goes on.
 *
 * The session's changes of maps come in as commands meanwhile, which the agent's thread does. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

enum { WAIT_MS = 10000 };

struct waiting {
    struct waiting *next;
    uint32_t request;
    bool done;
};

static struct waiting *waiting; /* on their threads' stacks; under the resolve lock */
static uint32_t last_request;
static _Atomic bool given_up; /* the session did not answer in time: nobody waits for it again */

static void unlink_waiting(const struct waiting *own)
{
    struct waiting **at = &waiting;
    while (*at != own)
        at = &(*at)->next;
    *at = own->next;
}

static bool answered(struct waiting *own, const struct egpu_host_call *message)
{
    uint64_t deadline = message->time + WAIT_MS * 1000000ull;
    const struct timespec until = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)};
    own->request = ++last_request;
    own->next = waiting;
    waiting = own;
    bool sent = egpu_wire_send(EGPU_HOST_CALL, own->request, message, sizeof *message, NULL, NULL, 0,
                               -1) == 0;
    while (sent && !own->done && atomic_load(&egpu.phase) == PHASE_LIVE && egpu_now() < deadline)
        pthread_cond_timedwait(&egpu.resolved, &egpu.resolve_lock, &until);
    unlink_waiting(own);
    return !sent || own->done || atomic_load(&egpu.phase) != PHASE_LIVE;
}

void egpu_host_call(enum egpu_launch_call call, bool leaving)
{
    if (atomic_load_explicit(&egpu.phase, memory_order_acquire) != PHASE_LIVE || !egpu_mine() ||
        atomic_load(&given_up))
        return;
    struct waiting own = {0};
    uint32_t stack = egpu_stack();
    struct quiet quiet = egpu_quiet();
    const struct egpu_host_call message = {.time = egpu_now(),
                                           .thread = (uint32_t)syscall(SYS_gettid),
                                           .call = (uint32_t)call,
                                           .leaving = leaving,
                                           .stack = stack};
    pthread_mutex_lock(&egpu.resolve_lock);
    bool good = answered(&own, &message);
    pthread_mutex_unlock(&egpu.resolve_lock);
    if (!good) {
        atomic_store(&given_up, true);
        egpu_say("the session did not run a program before a launch within %d s; the rest of the "
                 "launches go without",
                 WAIT_MS / 1000);
    }
    egpu_loud(quiet);
}

void egpu_host_done(uint32_t request)
{
    pthread_mutex_lock(&egpu.resolve_lock);
    for (struct waiting *each = waiting; each != NULL; each = each->next)
        if (each->request == request)
            each->done = true;
    pthread_cond_broadcast(&egpu.resolved);
    pthread_mutex_unlock(&egpu.resolve_lock);
}
