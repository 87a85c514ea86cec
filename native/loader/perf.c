/* perf_event_open(2): the places of probes, and the buffers of perf event arrays. */
#include <errno.h>
#include <linux/perf_event.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "loader.h"

/* The types that our sysfs files give.  Linux hands out numbers from PERF_TYPE_MAX on. */
enum { TYPE_KPROBE = 0x65670001, TYPE_UPROBE = 0x65670002, RETURN_BIT = 1 };
static const struct {
    const char *path, *text;
} files[] = {
    {"/sys/bus/event_source/devices/kprobe/type", "1701249025\n"},
    {"/sys/bus/event_source/devices/uprobe/type", "1701249026\n"},
    {"/sys/bus/event_source/devices/kprobe/format/retprobe", "config:0\n"},
    {"/sys/bus/event_source/devices/uprobe/format/retprobe", "config:0\n"},
};
_Static_assert(TYPE_KPROBE == 1701249025 && TYPE_UPROBE == 1701249026, "files and types agree");

const char *perf_file(const char *path)
{
    for (size_t i = 0; path != NULL && i < sizeof files / sizeof files[0]; i++)
        if (strcmp(path, files[i].path) == 0)
            return files[i].text;
    return NULL;
}

long do_perf_event_open(const void *bytes)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    uint32_t size;
    memcpy(&size, (const char *)bytes + offsetof(struct perf_event_attr, size), sizeof size);
    if (size == 0)
        size = PERF_ATTR_SIZE_VER0;
    memcpy(&attr, bytes, size < sizeof attr ? size : sizeof attr);
    struct object event = {.kind = OBJECT_PERF};
    if (attr.type == PERF_TYPE_SOFTWARE && attr.config == PERF_COUNT_SW_BPF_OUTPUT) {
        event.is_buffer = true;
    } else if (attr.type == (uint32_t)TYPE_KPROBE || attr.type == (uint32_t)TYPE_UPROBE) {
        const char *name = (const char *)(uintptr_t)attr.kprobe_func;
        event.is_uprobe = attr.type == (uint32_t)TYPE_UPROBE;
        event.is_return = (attr.config & RETURN_BIT) != 0;
        const int size = (int)sizeof event.place;
        if (name == NULL)
            return -EINVAL;
        int length = event.is_uprobe ? snprintf(event.place, sizeof event.place, "%s:0x%llx", name,
                                                (unsigned long long)attr.probe_offset)
                                     : snprintf(event.place, sizeof event.place, "%s", name);
        if (length < 0 || length >= size)
            return -ENAMETOOLONG;
    } else {
        return -ENOENT;
    }
    int fd = object_create(&event);
    return fd < 0 ? -errno : fd;
}

int do_perf_ioctl(struct object *event, unsigned long request, unsigned long argument)
{
    if (request == PERF_EVENT_IOC_SET_BPF) { /* how libbpf attaches where it finds no links */
        const struct object *program = object_of((int)argument);
        if (program == NULL || program->kind != OBJECT_PROGRAM)
            return -EBADF;
        long number = link_probe(program, event);
        if (number > 0)
            event->link = (uint32_t)number;
        return number < 0 ? (int)number : 0;
    }
    if (request == PERF_EVENT_IOC_DISABLE && event->link != 0) {
        uint32_t number = event->link;
        event->link = 0;
        return (int)unlink_probe(number);
    }
    return 0; /* a probe is on as long as its link is there, a buffer always */
}
