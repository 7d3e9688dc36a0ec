/*
 * yaml.h: the strict reader of YAML that configurations and manifests share. It
 * turns libyaml's events into a small tree and refuses everything that those
 * files do not need: aliases, anchors, tags, a second document, duplicate keys,
 * keys that are not plain text, depth or size beyond the limits, any encoding
 * but UTF-8.
 */
#ifndef FTI_YAML_H
#define FTI_YAML_H

#include "core/base.h"

#define FTI_YAML_MAX_BYTES (1024u * 1024u)
#define FTI_YAML_MAX_DEPTH 16u
#define FTI_YAML_MAX_NODES 65536u

typedef enum { FTI_YAML_SCALAR, FTI_YAML_SEQUENCE, FTI_YAML_MAPPING } fti_yaml_kind;

typedef struct fti_yaml_node fti_yaml_node;
struct fti_yaml_node {
    fti_yaml_kind kind;
    unsigned line; /* from 1 */
    bool quoted;   /* scalar: written with quotes, so never null, boolean or number */
    ftk_str text;  /* scalar */
    ftk_str key;   /* name of this node if it is a member of a mapping */
    unsigned key_line;
    fti_yaml_node *first; /* children of a sequence or mapping, in order */
    fti_yaml_node *next;  /* next sibling */
    size_t count;         /* children */
};

typedef struct fti_yaml fti_yaml;

/* Parses `size` bytes. `origin` names the source in messages ("FILE:LINE: ...").
 * An empty text gives a document whose root is an empty mapping. Failures are
 * FTK_E_CONFIG_SYNTAX, duplicate keys FTK_E_CONFIG_KEY. */
ftk_status fti_yaml_parse(const char *text, size_t size, const char *origin, fti_yaml **out,
                          ftk_error *err) FTI_WARN_UNUSED;
const fti_yaml_node *fti_yaml_root(const fti_yaml *yaml);
void fti_yaml_free(fti_yaml *yaml);

const fti_yaml_node *fti_yaml_member(const fti_yaml_node *mapping, const char *key);

/* Typed values of a scalar node; false if it is not of that form. Integers are
 * strict decimal without sign games, underscores or leading zeros; booleans are
 * exactly true and false; sizes are integers with an optional B, KiB, MiB, GiB
 * or TiB. */
bool fti_yaml_u64(const fti_yaml_node *node, uint64_t *value);
bool fti_yaml_bool(const fti_yaml_node *node, bool *value);
bool fti_yaml_bytes(const fti_yaml_node *node, uint64_t *value);

#endif
