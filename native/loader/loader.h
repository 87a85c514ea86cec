/* The library inside a loader program: bpf(2) and what belongs to it, answered by the session.
 *
 * A descriptor that it gives out is a memfd, so that the program can duplicate and close it as it
 * likes; which object it is follows from its inode. */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

enum object_kind {
    OBJECT_MAP,
    OBJECT_PROGRAM,
    OBJECT_LINK,
    OBJECT_BTF,
    OBJECT_PERF, /* a probe's place, or a buffer that perf records go to */
};

struct object {
    uint64_t inode;
    enum object_kind kind;
    uint32_t number; /* the session's, 0 where it has none */
    uint32_t type;   /* of a map or program */
    char name[EGPU_LOADER_NAME_SIZE];
    /* maps */
    uint32_t key_size, value_size, max_entries, flags;
    uint64_t user_size; /* bytes of a value as user space sees it */
    struct ring *ring;  /* where its records go, once somebody maps it */
    /* places of probes */
    char place[512];
    bool is_return, is_uprobe, is_buffer;
    uint32_t link; /* made by PERF_EVENT_IOC_SET_BPF */
};

/* objects.c.  Objects are never freed. */
int object_create(struct object *object); /* a descriptor, or -1 with errno */
struct object *object_of(int fd);         /* NULL for a descriptor of somebody else */

/* wire.c: 0 or a negative error number.  The answer is malloc'ed, NULL if it is empty. */
struct answer {
    uint64_t value;
    uint32_t size;
    void *bytes;
};
int ask(const struct egpu_loader_request *request, const void *const *parts, const size_t *sizes,
        int count, struct answer *answer);
bool loader_active(void); /* whether there is a session */
/* fd, or the same above standard error: a program that has closed its standard output writes to
 * whatever has its number. Closes fd; -1 with errno if there is no other. */
int move_up(int fd);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* bpf.c, perf.c: as the system calls, but with negative error numbers. */
long do_bpf(int command, union bpf_attr *attr, unsigned size);
long do_perf_event_open(const void *attr);
long link_probe(const struct object *program, const struct object *event);
long unlink_probe(uint32_t number);
int do_perf_ioctl(struct object *object, unsigned long request, unsigned long argument);
const char *perf_file(const char *path); /* the text of a file of sysfs that we answer for, or NULL */

/* rings.c */
void ring_mapped(int fd, struct object *object, size_t length);
int ring_event(struct object *object); /* the descriptor to wait on instead, or -1 */
int perf_attach(struct object *map, struct object *buffer);
