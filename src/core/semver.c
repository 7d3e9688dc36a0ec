/* semver.c: see semver.h. */
#include "core/semver.h"

static bool take_number(const char **p, const char *end, uint32_t *value) {
    const char *start = *p;
    uint64_t sum = 0;
    while (*p < end && **p >= '0' && **p <= '9' && sum <= UINT32_MAX)
        sum = sum * 10 + (uint64_t)(*(*p)++ - '0');
    if (*p == start || sum > UINT32_MAX || (*start == '0' && *p - start > 1)) return false;
    *value = (uint32_t)sum;
    return true;
}

static bool take_dot(const char **p, const char *end) {
    if (*p == end || **p != '.') return false;
    (*p)++;
    return true;
}

bool fti_semver_parse(ftk_str text, fti_semver *version) {
    const char *p = text.data;
    const char *end = text.size ? p + text.size : p;
    fti_semver v;
    if (!take_number(&p, end, &v.major) || !take_dot(&p, end) || !take_number(&p, end, &v.minor) ||
        !take_dot(&p, end) || !take_number(&p, end, &v.patch) || p != end)
        return false;
    *version = v;
    return true;
}

static int compare(fti_semver a, fti_semver b) {
    if (a.major != b.major) return a.major < b.major ? -1 : 1;
    if (a.minor != b.minor) return a.minor < b.minor ? -1 : 1;
    if (a.patch != b.patch) return a.patch < b.patch ? -1 : 1;
    return 0;
}

static fti_range_answer judge(fti_semver version, ftk_str comparator) {
    static const struct {
        const char *text;
        bool less, equal, greater;
    } operators[] = {{">=", false, true, true},
                     {"<=", true, true, false},
                     {">", false, false, true},
                     {"<", true, false, false},
                     {"=", false, true, false}};
    for (size_t i = 0; i < FTI_COUNT(operators); i++) {
        size_t n = strlen(operators[i].text);
        if (comparator.size < n || memcmp(comparator.data, operators[i].text, n) != 0) continue;
        fti_semver bound;
        if (!fti_semver_parse((ftk_str){comparator.data + n, comparator.size - n}, &bound))
            return FTI_RANGE_MALFORMED;
        int order = compare(version, bound);
        bool holds = order < 0    ? operators[i].less
                     : order == 0 ? operators[i].equal
                                  : operators[i].greater;
        return holds ? FTI_RANGE_INSIDE : FTI_RANGE_OUTSIDE;
    }
    return FTI_RANGE_MALFORMED;
}

fti_range_answer fti_semver_in_range(fti_semver version, ftk_str range) {
    if (range.size == 0) return FTI_RANGE_MALFORMED;
    fti_range_answer answer = FTI_RANGE_INSIDE;
    for (uint64_t start = 0; start <= range.size;) {
        uint64_t end = start;
        while (end < range.size && range.data[end] != ' ') end++;
        /* The whole range is read, so that a malformed one is never "outside". */
        fti_range_answer one = judge(version, (ftk_str){range.data + start, end - start});
        if (one < answer) answer = one;
        start = end + 1;
    }
    return answer;
}

bool fti_levels_meet(fti_levels host, fti_levels provider, uint32_t *effective) {
    bool frozen = host.level > 0 && provider.level > 0;
    bool meet = (frozen || host.level == provider.level) && host.level >= provider.min_peer &&
                provider.level >= host.min_peer;
    if (meet) *effective = host.level < provider.level ? host.level : provider.level;
    return meet;
}
