"""What no tool is wanted for: the card that competes with the tools' cards, and the words of a follow-up.

The words are of the common kinds of requests that a language model answers by itself: greetings and thanks, writing,
translating, explaining, general knowledge, advice. They say what is asked and nothing of a subject, since any subject can be
some tool's. An operator whose tools do one of these (a translator) has it win by its own aliases and examples.
"""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

from agentflow.routing.cards import ToolCard
from agentflow.routing.terms import excerpt, units

DIRECT = ToolCard(
    name="",
    examples=(
        "Hello there",
        "Good evening, how are things?",
        "Thank you very much",
        "Who are you?",
        "Write a story about a lighthouse keeper",
        "Draft an email to my boss",
        "Translate this sentence into German",
        "How do you say goodbye in Korean?",
        "Explain how a steam engine works",
        "What is photosynthesis?",
        "What is the capital of Peru?",
        "Who painted the Mona Lisa?",
        "When was the telephone invented?",
        "Why do leaves change colour?",
        "What is the difference between a frog and a toad?",
        "Give me some tips for learning the piano",
        "Recommend a good film",
        "How do I bake a chocolate cake?",
        "Rewrite this paragraph so that it is shorter",
        "I am bored, let's chat",
        "See you tomorrow, bye",
        "Where is Mount Kilimanjaro?",
        "How many people live in Argentina?",
        "Which language do they speak in Malta?",
        "In what year did the Titanic sink?",
        "How was paper first made?",
        "Who discovered penicillin?",
        "Can cats see in the dark?",
        "Is a whale a mammal?",
        "What does this idiom mean?",
        "What is the plot of Macbeth?",
        "Which sights should I see in Vienna?",
        "What is the best way to learn to swim?",
        "Give me an idea for a present",
        "What makes a good teacher?",
        "Do you like music?",
        "I feel lonely",
        "Make this text more formal",
        "Make a list of things to take camping",
        "How far is it from Rome to Paris?",
        "How do airlines set their prices?",
        "Is it polite to leave food on the plate?",
        "Which is heavier, gold or lead?",
        "早上好",
        "蜘蛛是昆虫吗？",
        "世界上最长的河是哪条？",
        "中秋节是怎么来的？",
        "金和银有什么区别？",
        "怎样才能学好数学？",
        "写一封感谢信",
        "去泰国要注意什么礼仪？",
        "我有点难过",
        "多谢你的帮忙",
        "你是谁？",
        "写一个关于小猫的故事",
        "把这句话翻译成英文",
        "解释一下光合作用",
        "秘鲁的首都是哪个城市？",
        "为什么树叶会变黄？",
        "电话是谁发明的？",
        "青蛙和蟾蜍有什么不同？",
        "推荐一部好看的电影",
        "蛋糕怎么做？",
        "陪我聊聊天",
    ),
    aliases=(
        # talk; a greeting alone has nothing of any tool, and needs no words here
        *("can you do", "let's chat", "opinion", "joke", "riddle", "favourite", "favorite", "i feel"),
        *("see you", "nice to meet"),
        # writing and changing texts
        *("compose", "draft", "poem", "haiku", "limerick", "story", "essay", "song", "lyrics", "speech"),
        *("slogan", "cover letter"),
        *("translate", "rewrite", "paraphrase", "proofread", "grammar", "rhyme", "brainstorm", "synonym", "make up"),
        # explaining and knowledge
        *("explain", "who wrote", "who invented", "invented", "invention", "history of", "origin of"),
        *("meaning of", "definition of"),
        *("what does the word", "the difference between", "a difference between", "capital of"),
        *("which country", "which countries"),
        # advice
        *("recipe for", "ideas for", "idea for", "tips for", "tips on", "advice", "name for"),
        # the same in Chinese
        *("你是谁", "你能做", "你会", "聊聊", "心情", "笑话", "谜语"),
        *("写一首", "写一篇", "写一封", "写一个", "写一段", "写首", "写篇", "写封", "写好", "诗", "故事"),
        *("作文", "邮件", "歌词", "翻译"),
        *("润色", "改写", "总结", "概括", "描述", "造句", "解释", "为什么", "为何", "是谁", "谁发明", "发明"),
        *("作者", "历史", "起源"),
        *("原理", "什么意思", "定义", "区别", "不同", "首都", "什么是", "是什么", "怎么做", "是怎么"),
        *("如何理解", "介绍", "推荐", "建议"),
        *("菜谱", "看法", "什么时候开始"),
    ),
    openers=(
        *("write a", "write an", "write me", "write some", "describe", "summarise", "summarize", "correct the"),
        *("suggest", "recommend"),
        *("list some", "name some", "name three", "give me some", "give me three", "give me five"),
        *("tell me about", "tell me something"),
        *("why", "how do", "how does", "how did", "how should", "how to", "how can i", "what is a"),
        *("what is an", "what is the meaning"),
        *("what was", "what were", "what makes", "what should i", "when did", "when was", "where did"),
        *("was the", "were the"),
        *("who was", "who is", "who designed", "who discovered", "who painted", "who founded", "who won"),
        *("who are you", "are you real", "are you a", "in what year", "how was", "in which year"),
        *("is it rude", "如何", "怎样", "谁", "有什么", "哪些"),
    ),
)

# A turn that begins with one of these, or ends so in Chinese, and is short, asks the same again of something else.
FOLLOW_UP_HEADS = (
    "and",
    "what about",
    "how about",
    "and what about",
    "and how about",
    "same for",
    "the same for",
    "那",
    "那么",
    "换成",
)
FOLLOW_UP_TAILS = ("呢",)
# What stands between two requests in one turn.
JOINTS = (
    r"(?:,(?!\d)|[;!?，；。！？、：\n])+|\.(?=\s|$)|\b(?:and|then|also|plus|after that|as well as)\b"
    r"|然后|接着|再把|再|并且|并|顺便|顺带|另外|还有|同时|以及"
)

FOLLOW_UP_UNITS = 8
"""Words or Chinese characters of the longest follow-up, by default."""
_HEADS = tuple(tuple(units(head)) for head in FOLLOW_UP_HEADS)
_TAILS = tuple(tuple(units(tail)) for tail in FOLLOW_UP_TAILS)


def follows_up(text: str, most_units: int = FOLLOW_UP_UNITS) -> bool:
    """Whether a text is short, and begins or ends as one does that leaves its question to the turn before it."""
    found = tuple(units(excerpt(text)))
    if len(found) > most_units:
        return False
    return any(found[: len(head)] == head for head in _HEADS) or any(found[-len(tail) :] == tail for tail in _TAILS)
