/* version.h: the release of libfreetoken that these headers belong to. */
#ifndef FREETOKEN_VERSION_H
#define FREETOKEN_VERSION_H

#define FTK_VERSION_MAJOR  0
#define FTK_VERSION_MINOR  1
#define FTK_VERSION_PATCH  0
#define FTK_VERSION_STRING "0.1.0"

/* Level of the provider contract (provider.h) that this release speaks. Level 0
 * is experimental: host and provider must state exactly the same level. */
#define FTK_API_LEVEL          0u
#define FTK_MIN_PROVIDER_LEVEL 0u

/* Number of the arithmetic (docs/numerics.md) that `numerics: exact` follows. It rises
 * with every change that can alter a bit of any result. */
#define FTK_NUMERICS_VERSION 0u

#endif
