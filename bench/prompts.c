/* prompts.c: see prompts.h. */
#include "prompts.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

const char fti_bench_line[] = "Once upon a time there was a little girl who lived near the forest.";

const char *const fti_bench_paragraphs[] = {
    "The ferry to the outer islands leaves at six, before the sun has cleared the hills, and "
    "those who have missed it once do not miss it again. There is a second boat in the evening, "
    "but it carries salt and timber, and its captain takes passengers only if he likes their "
    "hats. So in the dark one sees the whole town on the quay: two teachers with a box of maps, a "
    "man who repairs organs, the girl from the bakery with bread for her uncle, and a dog that "
    "belongs to nobody and has never paid. Ropes are thrown, somebody counts aloud, and the water "
    "between the stones and the planks grows wider without a sound.",

    "My grandmother kept bees behind the railway station, where nobody else wanted the ground. "
    "She said that a hive was a single animal which happened to have forty thousand mouths, and "
    "that one should never lie to it. When the line was closed she wrote a letter to each of the "
    "colonies, explaining that there would be no more trains, and read the letters out in front of "
    "the boxes with her hat in her hand. Whether they understood I cannot say. But that summer the "
    "lime trees along the empty platform were so full of them that the air itself seemed to hum, "
    "and the honey tasted faintly of iron.",

    "To make a good plain soup, begin with the water rather than with the vegetables. It should be "
    "cold, and there should be less of it than seems reasonable. Put in an onion cut in two, a "
    "carrot, the leaves of a stick of celery and six peppercorns, and bring the pot to the boil "
    "so slowly that you become impatient. Then do nothing for an hour. Cooks who stir are cooks "
    "who worry. Salt belongs at the end, when the liquid has shrunk and tells you how much it "
    "wants; a spoon of vinegar does more than a second spoon of salt. Strain it through a cloth, "
    "eat it with yesterday's bread, and keep a cup of it back for tomorrow.",

    "The committee met on Tuesday to decide what should be done about the clock. For eleven years "
    "it had been four minutes fast, and in that time the whole district had arranged itself "
    "around the error: the bus was timed by it, the school bell followed it, and two marriages had "
    "begun early on its account. Mr Abelard, who owned the hardware shop, argued that the truth "
    "was the truth. Mrs Okafor replied that a clock is a promise between neighbours, and that "
    "promises may be kept a little before they fall due. After long debate it was resolved to "
    "leave the hands alone and to move the sundial.",

    "Rivers are older than the valleys in which they lie. When a range of hills rises slowly "
    "enough, the water that crosses it keeps its old course and saws down through the rock as fast "
    "as the rock comes up, so that at last a stream runs straight through a mountain as if it had "
    "not noticed. Geologists found this hard to believe until they measured it. They drove steel "
    "pins into the bed, came back after ten winters, and saw how much of each pin stood free. A "
    "few hairs' breadth a year is enough. What looks like stubbornness is only patience added up, "
    "and the gorge that takes away the traveller's breath is a sum written in stone.",

    "\"You cannot leave it there,\" said the inspector, pointing at the piano. It stood on the "
    "landing between the second floor and the third, exactly where four tired men had put it down "
    "in March. Since then the tenants had grown used to it. The children from the first floor "
    "practised their scales on the way to school; the widow Lindqvist, who had not spoken to "
    "anyone since the flood, had been heard to play a waltz at midnight. The inspector had a form "
    "for obstructions, with a line for the nature of the object and another for the danger it "
    "caused. He thought for a while, wrote \"music\" on both, and went downstairs.",

    "A library of seeds is kept in the cold at the end of a long corridor, and the woman in charge "
    "of it knows most of them by their rattle. Wheat whispers; beans knock like small doors. Every "
    "ten years a pinch is taken out of each packet and laid on wet paper, to see whether the "
    "sleepers can still be woken. If too few of them answer, the whole lot is sown in a field "
    "behind the building, grown to ripeness, gathered, dried, and put to bed again as its own "
    "grandchildren. In this way a barley that was last harvested by soldiers of a vanished empire "
    "has been kept alive by nothing more than habit and a careful list.",

    "When the power failed, the first thing they noticed was how many small lights there had been. "
    "The kettle, the door, the toothbrush in its glass: each had kept watch with a green or "
    "a red eye, and now they were blind together. Outside, the sky came down to the roofs. Anton "
    "carried a chair into the street and sat on it, since there was nothing else to do, and by "
    "and by the others brought theirs. Somebody had a melon which would not keep. They talked "
    "about the winter when the canal froze, about a horse named Admiral, about who had planted the "
    "walnut tree. At two in the morning the lamps returned, and everybody said what a pity it was.",

    "The problem with the first bridge was not its strength but its song. In a light wind from the "
    "west the railings gave out a note somewhat below middle C, and people who lived on the hill "
    "complained that they dreamed of ships. The engineer who was sent for listened for three "
    "days, walked back and forth with a tuning fork, and asked for a bag of corks. She pushed one "
    "into the end of every seventh tube. The note broke into a chord, the chord into a rustle, and "
    "the rustle was taken for leaves. Her bill came to nine coins for the corks and two hundred "
    "for knowing which tubes to choose, and the town paid it gladly.",

    "In the mountains news travels by goat. A herdsman on the upper pasture ties a strip of cloth "
    "to the horn of the leading animal, blue for a birth and grey for a death, and by evening it "
    "has been seen in three villages. Yellow means that cheese is ready. Once, long ago, a "
    "young man tied on all the colours at the same time, for he was in love and did not know "
    "which of them applied. The old people still discuss what happened next, and they do not "
    "agree, but it is certain that the whole valley put on its good shoes and climbed up to see, "
    "and that there was dancing, and that a great deal of cheese was sold.",

    "Learning to read a tide table takes an afternoon; learning to believe it takes years. The "
    "numbers are printed in two columns, and each stands for a quantity of water so large that no "
    "one could hope to stop it, arriving at a minute that was worked out before you were born. "
    "Still the beginner looks at the dry sand, a mile of it, shining, with birds running over it "
    "on errands of their own, and thinks that just this once there may be time. The causeway has "
    "a row of posts with little huts on top. They were built for pilgrims and are used by people "
    "with telephones, who sit up there until the moon lets go, feeling foolish and very clean.",

    "He had been a locksmith for so long that he no longer saw doors, only the opinions of their "
    "makers. This one trusts nobody, he would say, running a thumb along the plate; that one is a "
    "coward, all noise and no bolt. When the museum asked him to open the iron chest from the "
    "wreck he came with no tools except a feather and a cup of warm oil. It took him most of a "
    "week. Inside there was a second chest, and in the second a letter, and in the letter a "
    "request, in faded brown ink, that the finder should be so kind as to close the lid again and "
    "tell no one what it did not contain.",

    "An orchestra tunes to the oboe because the oboe cannot help itself. Its pitch is fixed by a "
    "sliver of cane which the player has shaped with a knife at home, and there is little to be "
    "done about it on the evening. Violins can give way, trumpets can pull out a slide, even the "
    "kettledrums have a pedal; so the many adjust to the one who is unable to, and from this comes "
    "that minute of rising, searching, agreeable noise which some listeners like better than the "
    "programme. It has been proposed more than once to use an electric tone instead. The strings "
    "were in favour. But the oboist coughed, gave the note as always, and the matter was dropped.",

    "There are two ways of crossing the desert, and the guidebook recommends neither. The northern "
    "road has wells, but they are claimed by families who have quarrelled since the time of "
    "the great drought, and a traveller who drinks at one may not drink at the next. The southern "
    "road has no wells at all, only a chain of stone cairns, each within sight of the last, and "
    "a custom that whoever passes adds one pebble and takes away one worry. We went south. By the "
    "fifth day we had run out of worries and were obliged to borrow some from the camel driver, "
    "a man with eight daughters, who lent them freely and would accept no interest.",

    "Before a ship is named she has only a number, and the people who build her grow fond of it. "
    "Four-one-seven was late from the beginning. Her plates came in the wrong order, a strike held "
    "her up through the autumn, and in January a crane set a boiler down in the place where the "
    "galley should have been. The yard cursed her and worked by lamplight. Yet on the day when the "
    "wedges were knocked away and she slid backwards into the grey water with a noise like an "
    "enormous sigh, three hundred men stood bareheaded in the rain; and when the bottle broke and "
    "a stranger in furs called out some duchess's name, nobody on the slip repeated it.",

    "The last lesson of the year was about nothing. The teacher drew a circle on the board and "
    "asked what was in it, and the class said chalk. She wiped away the chalk and asked again. "
    "Zero, explained a boy in the second row, was invented by someone who had lent out all of his "
    "sheep. A girl thought that it must have been a baker, looking at the shelf on a good day. "
    "They spoke of empty chairs and full stops, of the hole which makes a needle useful, of the "
    "pause before an answer. When the bell rang nobody moved. Then the school was let out, "
    "all at once, into the enormous summer, where there was not one thing that had to be done.",
};

const size_t fti_bench_paragraph_count = sizeof fti_bench_paragraphs /
                                         sizeof fti_bench_paragraphs[0];

char *fti_bench_prose(size_t *size) {
    fti_cli_text text = {0};
    for (size_t i = 0; i < fti_bench_paragraph_count; i++)
        fti_cli_printf(&text, "%s%s", i ? "\n\n" : "", fti_bench_paragraphs[i]);
    *size = text.size;
    return text.data;
}

int fti_bench_make_prompts(const ftk_engine *engine, const char *text, size_t size,
                           const char *source, uint32_t tokens, fti_bench_prompt *prompts,
                           size_t count) {
    int32_t *all;
    size_t have;
    int code = fti_cli_encode(engine, text, size, false, &all, &have);
    if (code) return code;
    if (have < tokens || have < count) {
        free(all);
        return fti_cli_usage("%s has %zu tokens of this model, too few for %zu different prompts "
                             "of %u: give a longer text with --file, or a smaller --prompt-tokens",
                             source, have, count, tokens);
    }
    for (size_t i = 0; i < count; i++) {
        prompts[i].ids = fti_cli_alloc(tokens, sizeof(int32_t));
        prompts[i].count = tokens;
        for (size_t k = 0; k < tokens; k++) prompts[i].ids[k] = all[(i * have / count + k) % have];
    }
    free(all);
    return 0;
}

void fti_bench_free_prompts(fti_bench_prompt *prompts, size_t count) {
    for (size_t i = 0; prompts && i < count; i++) free(prompts[i].ids);
    free(prompts);
}
