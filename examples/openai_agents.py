"""OpenAI Agents SDK: the conversation is a session; a killed run's answers and tool results are not paid for twice.

pip install 'backstay[openai-agents]'
python examples/openai_agents.py
backstay log ticket-42
"""

from __future__ import annotations

import asyncio

from agents import Agent, Runner
from agents.testing import ScriptedModel, assistant_message

import backstay
from backstay.adapters.openai_agents import BackstayHooks, BackstaySession


async def main() -> None:
    """Two turns of one conversation; then the second is taken back."""
    model = ScriptedModel([[assistant_message("Which order?")], [assistant_message("Refunded.")]])
    agent = Agent(name="support", model=model)
    with backstay.open() as store:
        session = BackstaySession("ticket-42", store)
        for text in ("I want my money back", "order 7"):
            async with BackstayHooks() as hooks:
                result = await Runner.run(agent, text, session=session, hooks=hooks)
            print(result.final_output)
        first_turn = [checkpoint async for checkpoint in session.log()][-2]
        await session.restore(first_turn)
        print(len(await session.get_items()), "items after going back")


if __name__ == "__main__":
    asyncio.run(main())
