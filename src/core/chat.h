/*
 * chat.h: dialogues to tokens. The provider knows the markers of its model's turns; the
 * core tokenises its pieces, control pieces with special tokens recognised and everything
 * that a person wrote without.
 */
#ifndef FTI_CHAT_H
#define FTI_CHAT_H

#include "core/tokenizer.h"
#include "freetoken/freetoken.h"

ftk_status fti_chat_encode(const struct ftk_engine *engine, const ftk_message *messages,
                           size_t count, uint32_t flags, fti_ids *ids, ftk_error *err);

#endif
