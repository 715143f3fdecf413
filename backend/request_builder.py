"""From a conversation to a Request.

`RequestBuilder` runs the chat template, the image decoding and the processor on threads of its own, never on the event
loop or the engine thread, and refuses what can never fit before any of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar, overload

from PIL import Image

from backend.conversation import Conversation, ImagePart, SamplingDefaults, SamplingWish
from backend.errors import Cancelled, Rejected
from backend.image_fetch import ImageFetcher
from backend.image_input import EncodedImage, open_image, open_payload
from backend.models.adapter import ModelAdapter
from backend.models.chat_template import leaves, texts_of
from backend.raw_text import decode_ids, encode_text, raw_prompt, token_strings
from backend.sampling_rules import SamplingRules, check_wish
from backend.structured import GrammarCompiler, Vocabulary
from backend.tool_calls import find_format
from backend.types.request import Grammar, Prepared, Request, RequestClass

T = TypeVar("T")

LIGHT_CHARS = 1 << 20
"""Text and encoded images of a light request together: what a thread reads in tens of milliseconds."""

LIGHT_PIXELS = 16_000_000
"""Pixels of a light request's images together."""

LARGEST_IMAGES_PER_REQUEST = 4
"""So many images of the largest size allowed, or more smaller ones, may come in one request."""

PREPARE_NICENESS = 10
"""How much less urgent than the engine the threads are that make requests of bodies."""


class RequestBuilder:
    """Makes complete Requests for one model. `close` ends its threads.

    Heavy requests (much text, many pixels) have one thread among them, so that they hold up one another and take the
    memory of one; light ones share the others.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        *,
        max_model_len: int,
        max_image_pixels: int,
        defaults: SamplingDefaults | None = None,
        fetcher: ImageFetcher | None = None,
        num_threads: int = 2,
    ) -> None:
        self._adapter = adapter
        self._max_model_len = max_model_len
        self._max_image_pixels = max_image_pixels
        self._rules = SamplingRules(adapter.spec, defaults or SamplingDefaults(), max_model_len)
        self._fetcher = fetcher
        self._max_chars = max_model_len * max(map(len, adapter.tokenizer.get_vocab()))
        self._light = ThreadPoolExecutor(num_threads, thread_name_prefix="prepare", initializer=_give_way)
        self._heavy = ThreadPoolExecutor(1, thread_name_prefix="prepare-heavy", initializer=_give_way)
        self.vocabulary = Vocabulary(adapter.tokenizer, adapter.spec.eos_token_ids)
        self.tool_format = find_format(adapter.chat_template, adapter.tokenizer)
        self._grammars = GrammarCompiler(self.vocabulary)
        self._closed = False

    async def build(
        self,
        conversation: Conversation,
        wish: SamplingWish,
        request_class: RequestClass,
        *,
        id_prefix: str = "chatcmpl-",
    ) -> Request:
        """A Request with an id of its own; raises Rejected, naming the part, for what can never be answered.

        Whoever cancels it cancels the work: what has not begun never does, and what has ends before its next image.
        """
        grammar = await self._grammar(wish)
        prompt = await self.prepare(conversation)
        sampling = self._rules.params(prompt, wish, grammar, conversation.param)
        return Request(f"{id_prefix}{uuid.uuid4().hex}", prompt, sampling, request_class)

    async def prepare(self, conversation: Conversation) -> Prepared:
        """The prompt of a conversation, however long; refuses and is cancelled as `build` is."""
        self._refuse_impossible(conversation)
        gone = threading.Event()
        try:
            if self._fetcher is not None:
                conversation = replace(conversation, images=await self._fetcher.fill(conversation.images))
            images = await self._open_images(conversation)
            pictures = _Pictures(images, self._adapter.spec.max_image_side, gone)
            heavy = _num_chars(conversation) > LIGHT_CHARS or sum(i.num_pixels for i in images) > LIGHT_PIXELS
            return await self._run(
                heavy, lambda: self._adapter.prepare(conversation.messages, pictures, conversation.tools)
            )
        except asyncio.CancelledError:
            gone.set()
            if self._closed:
                raise Cancelled("the server is stopping") from None
            raise

    async def build_raw(
        self, text: str | Sequence[int], wish: SamplingWish, request_class: RequestClass, *, id_prefix: str, param: str
    ) -> Request:
        """A Request for a text as it is, or for token ids; refuses and is cancelled as `build` is."""
        grammar = await self._grammar(wish)
        token_ids = await self.encode(text, param=param) if isinstance(text, str) else text
        prompt = raw_prompt(self._adapter, token_ids, param=param)
        sampling = self._rules.params(prompt, wish, grammar, param)
        return Request(f"{id_prefix}{uuid.uuid4().hex}", prompt, sampling, request_class)

    async def encode(self, text: str, *, param: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text as it is; raises Rejected for one that cannot fit the context."""
        self._refuse_long(len(text), param)
        return await self._run(
            len(text) > LIGHT_CHARS,
            lambda: encode_text(self._adapter, text, add_special_tokens=add_special_tokens),
        )

    async def decode(self, token_ids: Sequence[int], *, param: str) -> str:
        """The text of token ids."""
        return await self._run(False, lambda: decode_ids(self._adapter, token_ids, param=param))

    async def spell(self, token_ids: Sequence[int]) -> list[str]:
        """Each of these tokens as the vocabulary spells it."""
        return await self._run(False, lambda: token_strings(self._adapter, token_ids))

    def close(self) -> None:
        """End the threads; preparations that have not begun are dropped."""
        self._closed = True
        for threads in (self._light, self._heavy):
            threads.shutdown(wait=False, cancel_futures=True)
        self._grammars.close()

    async def _grammar(self, wish: SamplingWish) -> Grammar | None:
        """What the answer must obey, compiled; refuses what no answer could be."""
        check_wish(wish, self._adapter.spec)
        if wish.num_logprobs is not None:
            await self._grammars.load()
        return await self._grammars.compile(wish.constraint) if wish.constraint else None

    def _refuse_impossible(self, conversation: Conversation) -> None:
        """Refuse by counting alone what cannot fit the context, whatever its text and images are."""
        spec, limit, images = self._adapter.spec, self._max_model_len, conversation.images
        if images and not spec.takes_images:
            raise Rejected("this model takes no images", param=images[0].param)
        if len(images) * spec.min_embeds_per_image >= limit:
            raise Rejected(
                f"the context is {limit} tokens long, and {len(images)} images take at least "
                f"{len(images) * spec.min_embeds_per_image}: send fewer",
                param=conversation.param,
                code="context_length_exceeded",
            )
        texts = [*texts_of(conversation.messages), *leaves(conversation.tools)]
        self._refuse_long(sum(map(len, texts)), conversation.param)

    def _refuse_long(self, num_chars: int, param: str) -> None:
        if num_chars > self._max_chars:
            raise Rejected(
                f"the context is {self._max_model_len} tokens long, and the {num_chars} characters of the {param} "
                f"cannot fit: {self._max_chars} are the most it could hold; shorten them",
                param=param,
                code="context_length_exceeded",
            )

    async def _open_images(self, conversation: Conversation) -> list[EncodedImage]:
        parts, bound = conversation.images, self._max_image_pixels
        if not parts:
            return []
        images = await self._run(
            _num_chars(conversation) > LIGHT_CHARS,
            lambda: [_open(part, bound) for part in parts],
        )
        num_pixels, most = sum(i.num_pixels for i in images), LARGEST_IMAGES_PER_REQUEST * bound
        if num_pixels > most:
            raise Rejected(
                f"the images have {num_pixels} pixels together, more than the {most} allowed in one request "
                f"({LARGEST_IMAGES_PER_REQUEST} times --max-image-pixels): send fewer or smaller ones",
                param=conversation.param,
                code="invalid_image",
            )
        return images

    async def _run(self, heavy: bool, work: Callable[[], T]) -> T:
        if self._closed:
            raise Cancelled("the server is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._heavy if heavy else self._light, work)


class _Pictures(Sequence[Image.Image]):
    """A request's images, each decoded whenever it is asked for, so that one at a time is in memory."""

    def __init__(self, images: Sequence[EncodedImage], max_side: int, gone: threading.Event) -> None:
        self._images = images
        self._max_side = max_side
        self._gone = gone

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...
    @overload
    def __getitem__(self, index: slice) -> _Pictures: ...
    def __getitem__(self, index: int | slice) -> Image.Image | _Pictures:
        if isinstance(index, slice):
            return _Pictures(self._images[index], self._max_side, self._gone)
        if self._gone.is_set():
            raise Cancelled("the client has left")
        return self._images[index].decode(self._max_side)


def _give_way() -> None:
    """Let the calling thread yield to the engine's: a picture that is scaled meanwhile takes what steps leave over.

    Only Linux knows the niceness of one thread; elsewhere it would be the whole process's.
    """
    if sys.platform == "linux":
        os.setpriority(
            os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + PREPARE_NICENESS
        )


def _open(part: ImagePart, max_pixels: int) -> EncodedImage:
    if part.payload is not None:
        return open_payload(part.payload, param=part.param, max_pixels=max_pixels)
    return open_image(part.uri, param=part.param, max_pixels=max_pixels)


def _num_chars(conversation: Conversation) -> int:
    """How much there is to read: text and encoded images."""
    return sum(map(len, texts_of(conversation.messages))) + sum(
        len(part.payload or part.uri) for part in conversation.images
    )
