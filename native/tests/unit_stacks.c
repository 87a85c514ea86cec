/* Two threads with one stack: neither has its number before the session has the stack. */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

#include "../agent/agent.h"

struct agent egpu;
static sem_t sending, go_on;
static _Atomic int begun, sent;

void egpu_say(const char *format, ...)
{
    (void)format;
}

struct quiet egpu_quiet(void)
{
    return (struct quiet){0};
}

void egpu_loud(struct quiet quiet)
{
    (void)quiet;
}

int egpu_wire_send(uint32_t kind, uint32_t request, const void *fixed, size_t fixed_size,
                   const char *const *texts, const size_t *sizes, size_t count, int file)
{
    (void)kind, (void)request, (void)fixed, (void)fixed_size;
    (void)texts, (void)sizes, (void)count, (void)file;
    if (atomic_fetch_add(&begun, 1) == 0) { /* the first one takes its time */
        sem_post(&sending);
        sem_wait(&go_on);
    }
    atomic_fetch_add(&sent, 1);
    return 0;
}

static void *launch(void *result)
{
    *(uint32_t *)result = egpu_stack();
    return NULL;
}

int main(void)
{
    pthread_t one, other;
    uint32_t first = 0, second = 0;
    egpu.features = EGPU_FEATURE_STACKS;
    sem_init(&sending, 0, 0);
    sem_init(&go_on, 0, 0);
    pthread_create(&one, NULL, launch, &first);
    sem_wait(&sending);
    pthread_create(&other, NULL, launch, &second);
    pthread_join(other, NULL);
    int known = atomic_load(&sent);
    sem_post(&go_on);
    pthread_join(one, NULL);
    printf("%d %d\n", first != 0 && first == second, known);
    return first != 0 && first == second && known == 1 ? 0 : 1;
}
