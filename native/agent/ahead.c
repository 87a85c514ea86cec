/* What the session can do before a kernel waits for it: it is told what devices there are when the
 * process comes, and of images when the driver is about to load them, which takes as long. */
#include <stdlib.h>
#include <string.h>

#include "agent.h"

enum { DEVICES = 16 }; /* no more are looked at */

static bool alike(const struct device *one, const struct device *other)
{
    return one->major == other->major && one->minor == other->minor &&
           one->sm_count == other->sm_count && strcmp(one->name, other->name) == 0;
}

static void name_device(const struct device *d)
{
    const char *name = d->name;
    size_t size = strlen(name);
    struct egpu_device message = {d->ordinal, d->major, d->minor, d->sm_count, (uint32_t)size, 0};
    egpu_wire_send(EGPU_DEVICE, 0, &message, sizeof message, &name, &size, 1, -1);
}

/* One of each kind. */
void egpu_name_devices(void)
{
    struct device known[DEVICES];
    size_t kinds = 0, same;
    int count = 0;
    CUdevice number;
    if (CALL(cuDeviceGetCount, &count) != CUDA_SUCCESS)
        return;
    for (int i = 0; i < count && i < DEVICES; i++) {
        if (CALL(cuDeviceGet, &number, i) != CUDA_SUCCESS ||
            egpu_device(number, &known[kinds]) != 0)
            continue;
        for (same = 0; same < kinds && !alike(&known[same], &known[kinds]); same++)
            continue;
        if (same == kinds)
            name_device(&known[kinds++]);
    }
}

static void tell(const struct module *module, const struct device *d)
{
    const char *texts[2] = {module->path, d->name};
    size_t sizes[2] = {strlen(texts[0]), strlen(texts[1])};
    struct egpu_loading message = {
        .image = module->image, .offset = module->offset, .size = module->size,
        .ordinal = d->ordinal, .major = d->major, .minor = d->minor, .sm_count = d->sm_count,
        .path_size = (uint32_t)sizes[0], .name_size = (uint32_t)sizes[1],
    };
    egpu_wire_try(EGPU_LOADING, &message, sizeof message, texts, sizes, 2);
}

static struct module *ahead(const void *image)
{
    CUcontext now = NULL;
    struct module *module;
    struct arena *arena;
    if (CALL(cuCtxGetCurrent, &now) != CUDA_SUCCESS || now == NULL || egpu_wire_descriptor() < 0 ||
        (module = calloc(1, sizeof *module)) == NULL)
        return NULL;
    if (!egpu_image_in_file(module, image) || (arena = egpu_arena(now, false)) == NULL) {
        free(module->path);
        free(module);
        return NULL;
    }
    module->image = egpu_image_number();
    module->told = true;
    tell(module, &arena->device);
    return module;
}

/* Tells of an image that the driver will be asked to load, if the session wants to know and can read
 * it.  What was found out is for the module that this becomes: NULL if nothing was. */
struct module *egpu_ahead(const void *image)
{
    if (likely(!atomic_load_explicit(&egpu.ahead, memory_order_relaxed)) || image == NULL ||
        atomic_load_explicit(&egpu.phase, memory_order_acquire) != PHASE_LIVE || !egpu_mine())
        return NULL;
    struct quiet quiet = egpu_quiet();
    struct module *module = ahead(image);
    egpu_loud(quiet);
    return module;
}

/* The driver has refused it. */
void egpu_ahead_refused(struct module *module)
{
    if (module == NULL)
        return;
    struct quiet quiet = egpu_quiet();
    struct egpu_image_gone message = {module->image};
    if (egpu_mine())
        egpu_wire_try(EGPU_IMAGE_GONE, &message, sizeof message, NULL, NULL, 0);
    free(module->path);
    free(module);
    egpu_loud(quiet);
}
