"""What people ask an assistant, put together from forms and topics, and openings for turns that a model writes."""

from __future__ import annotations

import random

_TOPICS = (
    "photosynthesis", "the Roman Empire", "black holes", "inflation", "vaccines", "the water cycle", "gardening",
    "baking bread", "learning a language", "time management", "remote work", "climate change", "solar power",
    "machine learning", "chess", "yoga", "public speaking", "the French Revolution", "volcanoes", "the stock market",
    "healthy sleep", "recycling", "electric cars", "jazz", "Renaissance painting", "the immune system",
    "job interviews", "budgeting", "travelling by train", "raising a puppy", "Japanese cuisine", "migration of birds",
    "the Silk Road", "quantum mechanics", "meditation", "social media", "online privacy", "writing a novel",
    "the human heart", "bees", "coral reefs", "democracy", "the Industrial Revolution", "DNA",
    "running a small business", "bicycles", "coffee", "the Moon", "earthquakes", "video games", "film photography",
    "Shakespeare", "poetry", "friendship", "teamwork", "leadership", "camping", "the ocean", "renewable energy",
    "artificial intelligence", "robots", "space travel", "ancient Egypt", "the printing press", "antibiotics",
    "cooking pasta", "home schooling", "urban planning", "noise pollution", "volunteering", "cats", "the piano",
    "marathon running", "first aid", "tea", "the Amazon forest", "supply and demand", "the Great Depression",
    "evolution", "plate tectonics", "gravity", "magnetism", "the Internet", "databases", "open source software",
    "cyber security", "a city library", "a museum visit", "Paris", "Kenya", "Hawaii", "New York", "Mexico", "India",
    "a winter holiday", "a wedding", "a birthday party", "customer service", "nutrition",
)  # fmt: skip
_FORMS = (
    "What is {a}?", "Explain {a} in simple terms.", "Explain {a} to a ten year old.", "Why does {a} matter?",
    "Write a short story about {a}.", "Write a poem about {a}.", "Write a blog post about {a}.", "Describe {a}.",
    "Write an email to a colleague about {a}. Keep it {style}.", "Give me {n} facts about {a}.",
    "List {n} common questions about {a} and answer them.", "Compare {a} and {b}.", "What are the benefits of {a}?",
    "What are the advantages and disadvantages of {a}?", "How has {a} changed over the last hundred years?",
    "Give me {n} tips on {a}.", "Write an essay outline on {a}.", "Summarize what is known about {a}.",
    "Imagine you are a teacher. How would you introduce {a} to your class?",
    "Write a dialogue between two friends on {a}.", "Write a product description that has to do with {a}.",
    "What would you recommend to someone new to {a}?", "Create a {n}-day plan around {a}.",
    "Write a {style} speech on {a}.", "What is the connection between {a} and {b}?",
    "Is {a} more important than {b}? Discuss.", "Write a press release about {a}.",
    "Who are famous people linked to {a}?", "Act as an expert on {a}. What mistakes do beginners make?",
    "Write a {style} paragraph about {a} and {b}.", "Suggest {n} titles for a book on {a}.",
    "Make a table with {n} rows on {a}.", "Define {a} and give an example.",
    "What questions should I ask before I spend money on {a}?", "How does {a} work?", "Tell me a joke about {a}.",
    "Write a letter to the editor about {a}.", "Draft a {style} social media post on {a}.", "Write a quiz on {a}.",
    "Translate into {language}: I would like to know more about {a}.", "What is the history of {a}?",
    "Classify these by theme: {a}, {b}, {c}.", "Rewrite this sentence in a {style} way: I know little about {a}.",
    "Extract the topics from this text: {A} and {b} came up in the meeting, but nobody spoke of {c}.",
    "Correct the grammar: me and him was talking of {a} since two hour.", "Write a haiku on {a}.",
    "Give step by step instructions for a project on {a}.", "What happens if we ignore {a}?",
    "Put these words in alphabetical order: {a}, {b}, {c}.", "Continue the story: Nobody had expected {a} to",
    "Pretend you are a tour guide. Say something about {a}.", "Write a review of a film about {a}.",
    "Which of these does not belong: {a}, {b}, {c}? Why?", "Answer in one sentence: what is {a}?",
)  # fmt: skip
_STYLES = ("formal", "friendly", "humorous", "short", "persuasive", "polite", "dramatic", "professional", "simple")
_LANGUAGES = ("French", "Spanish", "German", "Italian", "Portuguese")
OPENINGS = (
    "", "", "", "", "What", "How", "Why", "Write", "Explain", "Can you", "Give me", "I", "I am", "Create", "Describe",
    "Please", "Is", "Tell me", "List", "Summarize", "In", "If", "The", "Who", "Where", "Which", "Find", "Rewrite",
    "Translate", "Compare", "Solve", "Imagine", "Help me", "Make", "Identify", "Consider the following", "Read the",
    "Write a function", "A", "My", "Suppose", "Design", "Generate", "Given", "Classify",
)  # fmt: skip
"""First words of a user's turn that the model goes on with."""


def chat_prompt(draw: random.Random) -> str:
    """A request; equal states of `draw` give equal ones."""
    first, second, third = draw.sample(_TOPICS, 3)
    return draw.choice(_FORMS).format(
        a=first,
        b=second,
        c=third,
        A=first[0].upper() + first[1:],
        n=draw.randint(3, 10),
        style=draw.choice(_STYLES),
        language=draw.choice(_LANGUAGES),
    )
