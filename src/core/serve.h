/*
 * serve.h: what serve.c needs of asking.c: a request as an application states it, checked
 * and turned into tokens.
 */
#ifndef FTI_SERVE_H
#define FTI_SERVE_H

#include "core/request.h"

/* Checks everything that can be wrong with a request and fills *prompt, to be freed by the
 * caller also on failure; *said: tokens of what has been said in a dialogue, else 0. */
ftk_status fti_check_request(const struct ftk_engine *engine, const ftk_request *asked,
                             fti_ids *prompt, uint64_t *said, ftk_error *err);

#endif
