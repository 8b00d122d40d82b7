/* Arithmetic of formulas; see c_formula.py. */
#define FORMULA static inline __attribute__((unused)) int64_t

FORMULA add(int64_t a, int64_t b, int *bad)
{
    int64_t out;
    *bad |= __builtin_add_overflow(a, b, &out);
    return out;
}

FORMULA mul(int64_t a, int64_t b, int *bad)
{
    int64_t out;
    *bad |= __builtin_mul_overflow(a, b, &out);
    return out;
}

/* Round towards minus infinity. */
FORMULA floor_div(int64_t a, int64_t b, int *bad)
{
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        *bad = 1;
        return 0;
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* The remainder of floor_div, which has the sign of b. */
FORMULA modulo(int64_t a, int64_t b, int *bad)
{
    if (b == 0) {
        *bad = 1;
        return 0;
    }
    if (b == -1)
        return 0;
    return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}

FORMULA maximum(int64_t a, int64_t b) { return a < b ? b : a; }

FORMULA minimum(int64_t a, int64_t b) { return b < a ? b : a; }

