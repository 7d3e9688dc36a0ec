/* ends.h: requests to end the program other than Ctrl-C. */
#ifndef FTI_BENCH_ENDS_H
#define FTI_BENCH_ENDS_H

/* From here on SIGTERM and SIGHUP count as an interrupt (fti_cli_interrupted), unless the
 * caller of the program has them ignored: for commands that would leave something behind. */
void fti_bench_catch_ends(void);

#endif
