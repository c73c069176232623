"""What the page says about each kind of finding, and what the client itself is told; it names nobody else."""

from dataclasses import dataclass

from fedworth.findings import FindingKind


@dataclass(frozen=True)
class Words:
    """What is said about one kind of finding, the same for all."""

    tag: str
    title: str  # after the names
    why: str
    do: str
    told_title: str
    told_do: str
    passed: str
    is_grave: bool = True


COPIES = "The same data counted twice take worth from everyone else, and both are paid for one set of data."
ASK_COPIES = "Ask each of them where its data come from. If one is a copy, make the report again --without it."
TOLD_COPY = (
    "Check whether your data, and the model that you send, are yours alone. The coordinator will ask you about it."
)
NOT_TRAINED = "An answer that was not trained adds nothing, but is averaged like any other."
ASK_TRAINING = "Ask whether its training runs: a full disk, an empty data folder or a cached answer look like this."
TOLD_TRAINING = "Check that your training runs to its end and that its result is what is sent."

WORDS = {
    FindingKind.SAME_MODEL: Words(
        "Same data?",
        "sent the same model",
        COPIES,
        ASK_COPIES,
        "Your model was the same as another {noun}’s",
        TOLD_COPY,
        "No two {nouns} sent the same model.",
    ),
    FindingKind.SCALED_COPY: Words(
        "Copied?",
        "sent the same update, scaled",
        "One may be paid for the other’s work. " + COPIES,
        ASK_COPIES,
        "Your update was another {noun}’s, scaled",
        TOLD_COPY,
        "No update was another’s, scaled.",
    ),
    FindingKind.ALIKE: Words(
        "Alike",
        "sent updates that are alike as those of no other two",
        "They may hold the same data and draw other batches of it, or data of one kind. " + COPIES,
        "Ask each of them where its data come from.",
        "Your updates were much like another {noun}’s",
        TOLD_COPY,
        "No two {nouns} sent updates more alike than chance has it.",
        is_grave=False,
    ),
    FindingKind.LATE_COPY: Words(
        "Copied?",
        "sent the same answer in different rounds",
        "Whoever sends what another sent before adds nothing of its own.",
        ASK_COPIES,
        "An answer of yours was the same as another {noun}’s",
        TOLD_COPY,
        "No answer was another’s of an earlier round.",
    ),
    FindingKind.REPLAY: Words(
        "Repeats itself",
        "sent an old answer again",
        NOT_TRAINED,
        ASK_TRAINING,
        "You sent an old answer again",
        TOLD_TRAINING,
        "No {noun} sent an old answer again.",
    ),
    FindingKind.NO_UPDATE: Words(
        "Not trained",
        "sent the model back unchanged",
        NOT_TRAINED,
        ASK_TRAINING,
        "You sent the model back unchanged",
        TOLD_TRAINING,
        "No {noun} sent the model back unchanged.",
    ),
    FindingKind.STALE_MODEL: Words(
        "Not trained",
        "sent an old shared model back",
        NOT_TRAINED,
        ASK_TRAINING,
        "You sent an old shared model back",
        TOLD_TRAINING,
        "No {noun} sent an old shared model back.",
    ),
    FindingKind.ECHO: Words(
        "Echo",
        "sent the server’s own last step",
        "It follows the others’ training without training itself, and is paid for theirs.",
        ASK_TRAINING,
        "Your update was the server’s own last step",
        TOLD_TRAINING,
        "No update was the server’s own last step.",
    ),
    FindingKind.LARGE_UPDATE: Words(
        "Large update",
        "sent a far larger update than the others",
        "One large update can decide the average, for better or worse.",
        "Ask for its learning rate, number of steps and how its inputs are scaled.",
        "Your update was far larger than most",
        "Check your learning rate, your number of steps and the scale of your inputs.",
        "No update was much larger than the others.",
    ),
    FindingKind.MANY_SAMPLES: Words(
        "Many samples",
        "reported far more samples than the others",
        "Where the server weighs by samples, such a number decides the average.",
        "Ask whether the number is right.",
        "You reported far more samples than most",
        "Check the number of samples that you report.",
        "No {noun} reported far more samples than the others.",
        is_grave=False,
    ),
    FindingKind.CONTESTED_NAME: Words(
        "Name contested",
        "had its name claimed by a second node",
        "Somebody else may have answered, or tried to, in its name.",
        "Find out which node is its own, and who runs the other.",
        "Another node answered in your name",
        "Tell the coordinator which node is yours.",
        "No name was claimed by two nodes.",
    ),
    FindingKind.SHARED_NODE: Words(
        "One node",
        "answered from one node",
        "Several names for one owner collect several shares.",
        "Ask whether they are one owner; if so, value them as one.",
        "You share a node with another name",
        "Tell the coordinator why, if you do not know it.",
        "No two {nouns} answered from one node.",
        is_grave=False,
    ),
    FindingKind.LOW_VALUE: Words(
        "Low value",
        "is worth far less than the others",
        "Noisy data, wrong labels and other units of measurement look like this. So do data unlike the test data.",
        "Have its labels, its units and the way its inputs are made checked.",
        "Your data are worth far less than most",
        "Check how your labels are coded, in which units you measure and how your inputs are made.",
        "No {noun}’s value lies far below the others’.",
    ),
    FindingKind.HARM: Words(
        "Harms",
        "made the model worse",
        "On balance the model does worse with it than without it. Wrong labels and other units of measurement are "
        "common causes; data unlike the test data is another.",
        "Have its labels and units checked. To see the others without it, make the report again --without it.",
        "Your data made the model worse",
        "Check how your labels are coded and in which units you measure. Data unlike the coordinator’s test data can "
        "also look like this.",
        "No {noun}’s value lies clearly below zero.",
    ),
}
OTHER = Words(
    "Odd",
    "stood out",
    "It is unlike what the others did.",
    "Ask about it before acting on the values.",
    "Something about your answers stood out",
    "The coordinator can tell you more.",
    "",
)
RARE = Words(
    "Heard once",
    "answered in one round only",
    "Almost all of its value is estimated, and its range is likely too narrow. That is no judgement of its data.",
    "Ask it in more rounds before deciding on it.",
    "You took part in one round only",
    "Nothing is wrong with your data. Take part more often, and more of your value will be measured.",
    "Every {noun} with a value was heard more than once.",
    is_grave=False,
)
SILENT = Words(
    "Never heard",
    "never took part",
    "Nothing is known of its data, so no value can be given. The others are valued without it.",
    "Ask it in the next rounds.",
    "You never took part",
    "Nothing is known of your data, so you have no value here: not even zero.",
    "Every {noun} was heard at least once.",
    is_grave=False,
)
