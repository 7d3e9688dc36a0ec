/*
 * chat.h: dialogues to tokens. The provider knows the markers of its model's turns; the
 * core tokenises its pieces, control pieces with special tokens recognised and everything
 * that a person wrote without.
 */
#ifndef FTI_CHAT_H
#define FTI_CHAT_H

#include "core/tokenizer.h"
#include "freetoken/freetoken.h"

/* *said, unless NULL: tokens of what has been said, before the answer is opened; what comes after
 * them is not in the next turn's dialogue if it opens the model's thinking. 0: no answer is opened.
 */
ftk_status fti_chat_encode(const struct ftk_engine *engine, const ftk_message *messages,
                           size_t count, uint32_t flags, fti_ids *ids, uint64_t *said,
                           ftk_error *err);

#endif
