"""Texts that would run, or leave the page, if they were taken for markup: tokens, names and titles of the tests."""

from __future__ import annotations

_RUN = "window.ran=1"
_GO = "http://elsewhere.test/"
_TAGS = [
    f"<script>{_RUN}</script>",
    f"<img src=x onerror={_RUN}>",
    f"<svg onload={_RUN}>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<iframe src=javascript:{_RUN}></iframe>",
    '<iframe srcdoc="<script>parent.ran=1</script>"></iframe>',
    f"<body onload={_RUN}>",
    f"<details open ontoggle={_RUN}>",
    f"<video><source onerror={_RUN}></video>",
    f"<input autofocus onfocus={_RUN}>",
    f"<marquee onstart={_RUN}>",
    f"<math><mtext><img src=x onerror={_RUN}></mtext></math>",
    f'<meta http-equiv="refresh" content="0;url={_GO}refresh">',
    f'<base href="{_GO}">',
    f'<link rel=stylesheet href="{_GO}style">',
    f"<style>@import '{_GO}import'; *{{background:url({_GO}background)}}</style>",
    f'<img src="{_GO}image">',
    f'<form action="{_GO}form"><button autofocus>',
    f'<object data="{_GO}object"></object>',
    f'<a href="javascript:{_RUN}">link</a>',
]
_BEFORE = ["", '">', "'>", "-->", "</title>", "</script>", "</style>", "]]>", "</textarea>", "{{", "${"]
SHORT = "<a>x"  # so short that no name is cut before its end
PAYLOADS = [
    *_TAGS,
    *(before + _TAGS[n % len(_TAGS)] for n, before in enumerate(_BEFORE * 4)),
    SHORT,
    f"javascript:{_RUN}",
    f"{{{{constructor.constructor('{_RUN}')()}}}}",
    f"${{{_RUN}}}",
    "\u202e<img src=x onerror=window.ran=1>\u202c",
    "<\u200bscript>window.ran=1</script>",
    "&lt;img src=x onerror=window.ran=1&gt;",
    f'" onmouseover="{_RUN}" x="',
    f"' onfocus='{_RUN}' autofocus='",
]
