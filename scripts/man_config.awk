# man_config.awk: docs/config.md as freetoken.yaml(5). Reads the Markdown that the page
# is written in: a title, paragraphs, links, code, and one table of four columns.

function roff(s) {
    while (match(s, /\[[^]]*\]\([^)]*\)/))
        s = substr(s, 1, RSTART - 1) substr(s, RSTART + 1, index(substr(s, RSTART), "]") - 2) \
            substr(s, RSTART + RLENGTH)
    gsub(/\\\|/, "|", s)
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    gsub(/~/, "\\(ti", s)
    gsub(/'/, "\\(aq", s)
    gsub(/\*\*/, "", s)
    while (match(s, /`[^`]*`/))
        s = substr(s, 1, RSTART - 1) "\\fB" substr(s, RSTART + 1, RLENGTH - 2) "\\fR" \
            substr(s, RSTART + RLENGTH)
    if (s ~ /^[.]/) s = "\\&" s
    return s
}

function trim(s) {
    gsub(/^ +| +$/, "", s)
    return s
}

# key | values | default | meaning
function row(line, cell) {
    gsub(/\\\|/, "\001", line)
    split(line, cell, "|")
    for (i in cell) gsub("\001", "|", cell[i])
    print ".TP\n" roff(trim(cell[2]))
    print roff(trim(cell[3]) "; default " trim(cell[4]) ".")
    if (trim(cell[5]) != "") print ".br\n" roff(trim(cell[5]))
}

BEGIN {
    print ".TH FREETOKEN.YAML 5 \"\" \"freetoken\" \"File formats\""
    print ".SH NAME\nfreetoken.yaml \\- configuration of freetoken\n.SH DESCRIPTION"
}
/^# / { next }
/^## / { print ".SH \"" toupper(roff(substr($0, 4))) "\""; next }
/^\| key / { print ".SH KEYS"; next }
/^\|---/ { next }
/^\|/ { row($0); table = 1; next }
/^$/ { gap = ".PP"; if (table) gap = ".SH NOTES"; table = 0; next }
{ if (gap) print gap; gap = ""; print roff($0) }
END { print ".SH \"SEE ALSO\"\n\\fBfreetoken\\fR(1)" }
