/* What a call fails for, and its text. The tables are those of c_checks.py. */

/* guard: the one that fails, or NULL. input, axis, symbol: of a dimension that does not fit; `other`
   is where its size was found first. limit: of values, or -1. value: what was found; wanted: what it
   must be; least, greatest: what values may be. */
typedef struct {
    int code;
    const struct guard *guard;
    int input, axis, other_input, other_axis, symbol, limit;
    int64_t value, wanted, least, greatest;
    const char *dimension;
} failure;

#if SIZES > 0
static int fits(const struct guard *g, int64_t left, int64_t right)
{
    int holds = g->order == 0 ? left < right : g->order == 1 ? left <= right : left == right;
    return holds == g->holds;
}

/* Return the code of the first guard that fails in the program of which the fewest fail. */
static int explain_sizes(const int64_t sizes[], failure *f)
{
    int fewest = INT_MAX;
    *f = (failure){.code = OTHER_SIZES};
    for (int n = 0; n < PROGRAMS; n++) {
        const struct program *p = &programs[n];
        int64_t sides[GUARDS + 1][2];
        int is_bad[GUARDS + 1], count = 0;
        failure own = {0};
        p->sides(sizes, sides, is_bad);
        for (int k = 0; k < p->guard_count; k++) {
            const struct guard *g = &p->guards[k];
            if ((!is_bad[k] && fits(g, sides[k][0], sides[k][1])) || count++ > 0)
                continue;
            own.code = is_bad[k] ? CODE(SIZE_RANGE) : g->code;
            own.guard = is_bad[k] ? NULL : g;
            own.value = sides[k][g->mirrored];
            own.wanted = sides[k][!g->mirrored];
        }
        if (count > 0 && count < fewest) {
            fewest = count;
            *f = own;
        }
    }
    return f->code;
}
#else
/* There is code for the only sizes. */
static int explain_sizes(const int64_t sizes[], failure *f)
{
    (void)sizes;
    *f = (failure){.code = OTHER_SIZES};
    return f->code;
}
#endif

#if LIMITS > 0
/* Values of a limit: sums of `length` elements, which are `inner` apart; of one for elements. */
typedef struct {
    int64_t outer, length, inner;
} extent;

static extent limited_extent(int limit, const int64_t dims[])
{
    int n = limits[limit].input;
    extent e = {1, 1, 1};
    for (int axis = 0; axis < NAME(inputs)[n].rank; axis++) {
        int64_t d = dims[first_dimensions[n] + axis];
        if (axis == limits[limit].axis)
            e.length = d;
        else
            *(limits[limit].axis >= 0 && axis > limits[limit].axis ? &e.inner : &e.outer) *= d;
    }
    return e;
}

#define FIND_OUTSIDE(type, number)                                                                 \
    for (int64_t k = 0; k < e.outer * e.inner; k++) {                                              \
        const type *at = (const type *)data + k / e.inner * e.length * e.inner + k % e.inner;      \
        uint64_t sum = 0;                                                                          \
        for (int64_t n = 0; n < e.length; n++) {                                                   \
            type x = at[n * e.inner];                                                              \
            sum += (uint64_t)(number);                                                             \
        }                                                                                          \
        *value = (int64_t)sum;                                                                     \
        if (*value < least || *value > greatest)                                                   \
            return 1;                                                                              \
    }                                                                                              \
    return 0

/* Return whether a value of a tensor with elements is out of range, and one that is; the types are
   ONNX's. */
static int has_outside(const void *data, extent e, int type, int64_t least, int64_t greatest,
                       int64_t *value)
{
    switch (type) {
    case 2: FIND_OUTSIDE(uint8_t, x);
    case 3: FIND_OUTSIDE(int8_t, x);
    case 4: FIND_OUTSIDE(uint16_t, x);
    case 5: FIND_OUTSIDE(int16_t, x);
    case 6: FIND_OUTSIDE(int32_t, x);
    case 7: FIND_OUTSIDE(int64_t, x);
    case 12: FIND_OUTSIDE(uint32_t, x);
    case 13: FIND_OUTSIDE(uint64_t, x > INT64_MAX ? INT64_MAX : (int64_t)x);
    default: return 0;
    }
}
#endif

/* Write the text of a failure as snprintf does. */
static int write_failure(const failure *f, char text[], size_t size)
{
#if SIZES > 0
    if (f->guard != NULL) {
        const struct guard *g = f->guard;
        if (g->is_constant)
            return snprintf(text, size, "%s is %" PRId64 ", and must be %s %" PRId64 " (%s)",
                            g->left, f->value, g->relation, f->wanted, g->where);
        return snprintf(text, size,
                        "%s is %" PRId64 ", and must be %s %s, which is %" PRId64 " (%s)", g->left,
                        f->value, g->relation, g->right, f->wanted, g->where);
    }
    if (f->code == CODE(UNEQUAL_SIZES))
        return snprintf(text, size,
                        "%s is %" PRId64 " in axis %d of input %s, and %" PRId64
                        " in axis %d of input %s",
                        NAME(sizes)[f->symbol], f->wanted, f->other_axis,
                        NAME(inputs)[f->other_input].name, f->value, f->axis,
                        NAME(inputs)[f->input].name);
    if (f->code == CODE(OTHER_SHAPE))
        return snprintf(text, size, "axis %d of input %s is %" PRId64 ", and must be %" PRId64,
                        f->axis, NAME(inputs)[f->input].name, f->value, f->wanted);
    if (f->code == CODE(UNRELATED_SIZES))
        return snprintf(text, size,
                        "axis %d of input %s is %" PRId64 ", and must be %s, which is %" PRId64,
                        f->axis, NAME(inputs)[f->input].name, f->value, f->dimension, f->wanted);
#endif
#if LIMITS > 0
    if (f->code == CODE(VALUE_RANGE)) {
        const char *name = NAME(inputs)[limits[f->limit].input].name;
        const char *kind = limits[f->limit].axis >= 0 ? "sum" : "value";
        if (f->least == INT64_MIN)
            return snprintf(text, size,
                            "input %s has the %s %" PRId64 ": %s: %ss up to %" PRId64
                            " are possible",
                            name, kind, f->value, limits[f->limit].what, kind, f->greatest);
        if (f->greatest == INT64_MAX)
            return snprintf(text, size,
                            "input %s has the %s %" PRId64 ": %s: %ss from %" PRId64
                            " are possible",
                            name, kind, f->value, limits[f->limit].what, kind, f->least);
        return snprintf(text, size,
                        "input %s has the %s %" PRId64 ": %s: %ss from %" PRId64
                        " up to %" PRId64 " are possible",
                        name, kind, f->value, limits[f->limit].what, kind, f->least, f->greatest);
    }
#endif
    return snprintf(text, size, "%s", NAME(error)(f->code));
}

