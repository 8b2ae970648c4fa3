"""Numbers of 32 bits as numbers of 16 bits (IEEE 754 half precision), with what is lost carried on.

Every function takes plain memory, of so many elements, and calls nobody. Roundings are to the nearest, ties to even. What is not finite
stays what it is. With F16C eight elements are converted at once, which is looked up at run time. The bits are the same without.
"""
from libc.stdint cimport int64_t, uint16_t

cdef extern from *:
    """
    #ifndef PROPHET_HALVES
    #define PROPHET_HALVES
    #include <stdint.h>
    #include <string.h>

    #define PROPHET_LARGEST_HALF 65504.0f

    static inline float prophet_from_half(uint16_t half) {
        uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31, fraction = half & 1023, bits;
        float value;
        if (exponent == 31)
            bits = sign | 0x7f800000u | (fraction ? 0x400000u | fraction << 13 : 0);
        else if (exponent)
            bits = sign | (exponent + 112) << 23 | fraction << 13;
        else {
            value = (float)fraction * 0x1p-24f;
            memcpy(&bits, &value, 4);
            bits |= sign;
        }
        memcpy(&value, &bits, 4);
        return value;
    }

    static inline uint16_t prophet_to_half(float value) {
        uint32_t bits, magnitude;
        uint16_t sign;
        memcpy(&bits, &value, 4);
        sign = (uint16_t)(bits >> 16 & 0x8000u);
        magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u)                            // not a number
            return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 1023));
        if (magnitude >= 0x477ff000u)                           // rounds to more than the largest
            return sign | 0x7c00u;
        if (magnitude < 0x38800000u) {                          // below the smallest normal one: a multiple of 2^-24
            float shifted;
            memcpy(&shifted, &magnitude, 4);
            shifted += 0.5f;                                    // whose last place is 2^-24, so that this sum rounds as it should
            memcpy(&magnitude, &shifted, 4);
            return (uint16_t)(sign | (magnitude - 0x3f000000u));
        }
        return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13));
    }

    static inline float prophet_clip(float value, float limit) {
        return value > limit ? limit : value < -limit ? -limit : value;
    }

    static inline int64_t prophet_squeeze_from(int64_t i, const float* values, float* lost, uint16_t* halves, int64_t count, float limit) {
        int64_t over = 0;
        for (; i < count; i++) {
            float sum = lost[i] + values[i];
            int finite = sum - sum == 0, beyond = finite && (sum > limit || sum < -limit);
            halves[i] = prophet_to_half(beyond ? prophet_clip(sum, limit) : sum);
            lost[i] = finite ? sum - prophet_from_half(halves[i]) : 0;
            over += beyond;
        }
        return over;
    }

    static inline void prophet_widen_from(int64_t i, const uint16_t* halves, float* values, int64_t count) {
        for (; i < count; i++)
            values[i] = prophet_from_half(halves[i]);
    }

    static inline void prophet_follow_from(int64_t i, const uint16_t* halves, float* held, float* values, int64_t count) {
        for (; i < count; i++)
            values[i] = held[i] += prophet_from_half(halves[i]);
    }

    static inline void prophet_change_from(int64_t i, const float* master, float* sent, float* change, int64_t count) {
        for (; i < count; i++) {
            float wanted = master[i] - sent[i];
            change[i] = prophet_from_half(prophet_to_half(wanted - wanted == 0 ? prophet_clip(wanted, PROPHET_LARGEST_HALF) : wanted));
            sent[i] += change[i];
        }
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define PROPHET_FAST __attribute__((target("avx,f16c")))

    static inline int prophet_has_f16c(void) {
        return __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
    }

    PROPHET_FAST static inline __m256 prophet_eight(const uint16_t* halves) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)halves));
    }

    PROPHET_FAST static inline int prophet_within(__m256 values, __m256 limit) {         // all eight are finite, and none is beyond it
        __m256 magnitudes = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), values);
        return _mm256_movemask_ps(_mm256_cmp_ps(magnitudes, limit, _CMP_NLE_UQ)) == 0;
    }

    PROPHET_FAST static int64_t prophet_squeeze_fast(const float* values, float* lost, uint16_t* halves, int64_t count, float limit) {
        const __m256 most = _mm256_set1_ps(limit);
        int64_t i = 0, over = 0;
        for (; i + 8 <= count; i += 8) {
            __m256 sum = _mm256_add_ps(_mm256_loadu_ps(lost + i), _mm256_loadu_ps(values + i));
            __m128i sent = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT);
            if (!prophet_within(sum, most)) {
                over += prophet_squeeze_from(i, values, lost, halves, i + 8, limit);
                continue;
            }
            _mm_storeu_si128((__m128i*)(halves + i), sent);
            _mm256_storeu_ps(lost + i, _mm256_sub_ps(sum, _mm256_cvtph_ps(sent)));
        }
        return over + prophet_squeeze_from(i, values, lost, halves, count, limit);
    }

    PROPHET_FAST static void prophet_widen_fast(const uint16_t* halves, float* values, int64_t count) {
        int64_t i = 0;
        for (; i + 8 <= count; i += 8)
            _mm256_storeu_ps(values + i, prophet_eight(halves + i));
        prophet_widen_from(i, halves, values, count);
    }

    PROPHET_FAST static void prophet_follow_fast(const uint16_t* halves, float* held, float* values, int64_t count) {
        int64_t i = 0;
        for (; i + 8 <= count; i += 8) {
            __m256 sum = _mm256_add_ps(_mm256_loadu_ps(held + i), prophet_eight(halves + i));
            _mm256_storeu_ps(held + i, sum);
            _mm256_storeu_ps(values + i, sum);
        }
        prophet_follow_from(i, halves, held, values, count);
    }

    PROPHET_FAST static void prophet_change_fast(const float* master, float* sent, float* change, int64_t count) {
        const __m256 most = _mm256_set1_ps(PROPHET_LARGEST_HALF);
        int64_t i = 0;
        for (; i + 8 <= count; i += 8) {
            __m256 known = _mm256_loadu_ps(sent + i), wanted = _mm256_sub_ps(_mm256_loadu_ps(master + i), known);
            __m256 rounded = _mm256_cvtph_ps(_mm256_cvtps_ph(wanted, _MM_FROUND_TO_NEAREST_INT));
            if (!prophet_within(wanted, most)) {
                prophet_change_from(i, master, sent, change, i + 8);
                continue;
            }
            _mm256_storeu_ps(change + i, rounded);
            _mm256_storeu_ps(sent + i, _mm256_add_ps(known, rounded));
        }
        prophet_change_from(i, master, sent, change, count);
    }
    #else
    static inline int prophet_has_f16c(void) { return 0; }
    #define prophet_squeeze_fast(values, lost, halves, count, limit) prophet_squeeze_from(0, values, lost, halves, count, limit)
    #define prophet_widen_fast(halves, values, count) prophet_widen_from(0, halves, values, count)
    #define prophet_follow_fast(halves, held, values, count) prophet_follow_from(0, halves, held, values, count)
    #define prophet_change_fast(master, sent, change, count) prophet_change_from(0, master, sent, change, count)
    #endif

    static int prophet_portable = 0;            // for tests: as if there were no F16C

    static inline int prophet_fast(void) { return !prophet_portable && prophet_has_f16c(); }

    static inline int64_t prophet_squeeze(const float* values, float* lost, uint16_t* halves, int64_t count, float limit) {
        return prophet_fast() ? prophet_squeeze_fast(values, lost, halves, count, limit)
                              : prophet_squeeze_from(0, values, lost, halves, count, limit);
    }

    static inline void prophet_widen(const uint16_t* halves, float* values, int64_t count) {
        if (prophet_fast()) prophet_widen_fast(halves, values, count); else prophet_widen_from(0, halves, values, count);
    }

    static inline void prophet_follow(const uint16_t* halves, float* held, float* values, int64_t count) {
        if (prophet_fast()) prophet_follow_fast(halves, held, values, count); else prophet_follow_from(0, halves, held, values, count);
    }

    static inline void prophet_change(const float* master, float* sent, float* change, int64_t count) {
        if (prophet_fast()) prophet_change_fast(master, sent, change, count); else prophet_change_from(0, master, sent, change, count);
    }
    #endif
    """
    int prophet_portable
    # halves = what 16 bits hold of values + lost, within +-limit; lost is then what they do not hold, 0 where the sum is not finite.
    # Returns how many finite sums were beyond the limit.
    int64_t prophet_squeeze(const float* values, float* lost, uint16_t* halves, int64_t count, float limit) nogil
    # values = halves
    void prophet_widen(const uint16_t* halves, float* values, int64_t count) nogil
    # held += halves; values = held
    void prophet_follow(const uint16_t* halves, float* held, float* values, int64_t count) nogil
    # change = what 16 bits hold of master - sent, in 32 bits; sent += change
    void prophet_change(const float* master, float* sent, float* change, int64_t count) nogil
