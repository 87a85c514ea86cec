/* Program headers: what is loaded as one. */
#include "image.h"

/* Whether a segment of the whole cubin holds a section that is loaded. */
static bool covers(const Elf64_Phdr *segment, const Elf64_Shdr *was)
{
    uint64_t end = segment->p_offset + segment->p_filesz; /* no further than the image */
    if (!(was->sh_flags & SHF_ALLOC) || was->sh_type == SHT_NULL ||
        was->sh_offset < segment->p_offset)
        return false;
    if (was->sh_type != SHT_NOBITS)
        return was->sh_offset < end;
    return segment->p_memsz > segment->p_filesz && was->sh_offset <= end &&
           was->sh_flags & SHF_WRITE;
}

/* The same for what is left of it: false if that is nothing, or too much for a number. */
static bool place_segment(const struct egpu_work *work, Elf64_Phdr *segment, int *answer)
{
    uint64_t begin = UINT64_MAX, nobits = UINT64_MAX, end = 0, memory;
    bool stored = false, any = false;
    Elf64_Phdr was = *segment;

    for (uint64_t n = 0; n < work->kept_count; n++) {
        Elf64_Shdr old = egpu_row(work->cubin, work->kept[n]), *row = &work->rows[n];
        if (!covers(&was, &old))
            continue;
        any = true;
        if (row->sh_type == SHT_NOBITS) {
            nobits = egpu_least(nobits, row->sh_offset);
            continue;
        }
        stored = true;
        begin = egpu_least(begin, row->sh_offset);
        end = row->sh_offset + row->sh_size > end ? row->sh_offset + row->sh_size : end;
    }
    if (!any)
        return false;
    if (!stored)
        begin = end = nobits;
    memory = end - begin;
    for (uint64_t n = 0; n < work->kept_count; n++) {
        Elf64_Shdr old = egpu_row(work->cubin, work->kept[n]), *row = &work->rows[n];
        if (row->sh_type != SHT_NOBITS || !covers(&was, &old))
            continue;
        uint64_t align = row->sh_addralign > 0 ? row->sh_addralign : 1;
        if (row->sh_size > EGPU_MOST_MEMORY || memory > EGPU_MOST_MEMORY) {
            *answer = EGPU_CUBIN_WHOLE;
            return false;
        }
        memory = (memory + align - 1) / align * align + row->sh_size;
    }
    segment->p_offset = begin;
    segment->p_filesz = end - begin;
    segment->p_memsz = memory;
    return true;
}

/* One for what each covered; those of which nothing is left go. */
int egpu_put_segments(struct egpu_work *work, Elf64_Ehdr *head)
{
    const struct egpu_cubin *cubin = work->cubin;
    Elf64_Ehdr was = *head;
    uint64_t table = work->out.length, itself = 0;
    int answer = EGPU_CUBIN_DONE;

    if (was.e_phnum * work->kept_count > cubin->size)
        return EGPU_CUBIN_WHOLE;
    head->e_phnum = 0;
    for (uint64_t pass = 0; pass < 2; pass++) { /* first, how large the table will be */
        work->out.length = table;
        for (uint64_t i = 0; i < was.e_phnum && answer == EGPU_CUBIN_DONE; i++) {
            Elf64_Phdr segment;
            memcpy(&segment, cubin->data + was.e_phoff + i * sizeof segment, sizeof segment);
            if (segment.p_type == PT_PHDR || segment.p_offset == was.e_phoff) {
                segment.p_offset = table;
                segment.p_filesz = segment.p_memsz = itself;
            } else if (!place_segment(work, &segment, &answer)) {
                continue;
            }
            egpu_put(&work->out, &segment, sizeof segment);
        }
        itself = work->out.length - table;
    }
    head->e_phnum = (uint16_t)(itself / sizeof(Elf64_Phdr));
    head->e_phoff = itself != 0 ? table : 0;
    return answer;
}
