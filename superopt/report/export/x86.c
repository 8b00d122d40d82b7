/* What an x86-64 processor has, by its own instructions. */

#ifdef __x86_64__
#include <cpuid.h>

/* Return a bit of CPUID. number: of the register, from eax. */
static int has_bit(unsigned leaf, unsigned subleaf, int number, int bit)
{
    unsigned found[4] = {0};
    if (!__get_cpuid_count(leaf, subleaf, &found[0], &found[1], &found[2], &found[3]))
        return 0;
    return (int)(found[number] >> bit & 1);
}

/* Return whether the system saves these registers, by the bits of XCR0. */
static int saves_registers(unsigned mask)
{
    unsigned low, high;
    if (!has_bit(1, 0, 2, 27)) /* OSXSAVE */
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & mask) == mask;
}
#endif
