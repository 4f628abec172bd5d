#!/usr/bin/env python3
"""Writes template_golden.json: expressions and small templates with the text that jinja2 gives in
transformers' environment.

usage: make_template_golden.py > template_golden.json
       (pip install jinja2==3.1.6 transformers==5.23.0)

A case has `right`, the text, or `right` null where jinja2 raises an error: then Baton refuses too.
"""
import datetime
import json

import jinja2
import transformers
import transformers.utils.chat_template_utils as utils

assert (jinja2.__version__, transformers.__version__) == ("3.1.6", "5.23.0")
NOW = 1753488000  # 2025-07-26 00:00:00 UTC


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2025, 7, 26)


utils.datetime = Clock

VARIABLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "add_generation_prompt": True,
    "tools": None,
    "documents": None,
    "messages": [
        {"role": "user", "content": "naïve é|rest é"},
        {"role": "assistant", "content": "one\x0btwo\x1c", "n": 3},
    ],
    "d": {"b": 1, "a": [1, 2.5, None, True], "C": {"x": "y"}, "items": "own"},
    "people": [
        {"name": "Bo", "age": 30, "town": {"id": 2}},
        {"name": "ana", "age": 25, "town": {"id": 1}},
        {"name": "Cy", "age": 30, "town": {"id": 2}},
    ],
    "s": "Hello, World",
    "u": "Straße ΑΣ ﬁ ǆ İ 日本 😀",
    "blank": " \t\x1f\u00a0x\u2003\u0085 ",
    "big": 12345678901234567890,
    "f": 3.14159,
    "q": "it's",
    "dq": 'say "hi"',
    "both": "'\"",
    "ctl": "a\n\t\r\\\x00\x7f\u00ad\u200b\ue000\U000e0001é",
    "words": ["b", "A", "c", "a", "B"],
    "nested": [[1, [2, [3]]], {"k": (1)}],
    "empty": "",
    "nums": [3, 1, 2, 3, -1],
}

EXPRESSIONS = r"""
tools is iterable
tools is iterable and tools | length > 0
none is iterable
1 is iterable
'a' is iterable
missing is iterable
missing | length
missing | list
none | length
none | list
5 | length
messages[0].calls | length
messages[0].content.find('é')
messages[0].content.rfind('é')
messages[0].content.rfind('é', 0, 6)
messages[0].content.find('zz')
messages[0].content.index('zz')
messages[0].content.rindex('é')
messages[0].content[6:]
messages[0].content[-1]
messages[0].content[::-1]
messages[0].content[::2]
messages[0].content[2:5:2]
messages[0].content[100]
messages[0].content[100:]
messages[0].content[-100:2]
messages[0].content | length
messages[0].content.split('|')
messages[0].content.rsplit('|', 1)[0]
messages[0].content.partition('|')[2]
messages[0].content.rpartition('|')
messages[0].content.partition('~')
messages[0].content.rpartition('~')
[messages[1].content | trim]
messages[1].content.split()
messages[1].content.splitlines()
messages[1].content.strip() == 'one\x0btwo'
messages
messages[0]
messages[1].n
messages[-1]['role']
messages[5]
messages[5].role
messages['x']
messages.x
messages.append(1)
messages.count(messages[0])
messages.index(messages[1])
messages | length
messages[1:] | length
messages[:-1] | map(attribute='role') | list
messages | selectattr('n') | list | length
messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first
messages | rejectattr('role', 'in', ['user']) | map(attribute='n') | list
messages | map(attribute='n', default=0) | list
messages | map(attribute='n') | list
messages | selectattr('n', 'defined') | list | count
''.isdigit() ~ ''.isspace() ~ ''.isalpha()
2.5 | round
3.5 | round
-2.5 | round
2.675 | round(2)
1234.5 | round(-2)
1250 | round(-2)
15 | round(-1)
25 | round(-1)
2.4 | round(method='ceil')
2.6 | round(0, 'floor')
2.345 | round(2, 'ceil')
7 | round
7 | round(1, 'floor')
'x' | round
2 | round(method='up')
1e300 | round(2)
"it's" | title
q | title
'hello-world (foo) {bar} [baz] <qux> a_b' | title
"they're bill's".title()
u | title
u.title()
u.upper()
u.lower()
u.casefold()
u.swapcase()
u.capitalize()
u | capitalize
u | upper
u | length
u | reverse
u[-2:]
u.find('日')
'ΑΣΑ ΑΣ'.lower()
'ß'.upper() ~ 'ŉ'.upper() ~ 'ǆ'.title() ~ 'ǅ'.islower() ~ 'ǅ'.isupper() ~ 'ǅ'.istitle()
messages[0] is sequence
'a' is sequence
(1, 2) is sequence
d.items() is sequence
d.items() is iterable
range(3) is sequence
5 is sequence
none is sequence
missing is sequence
messages[0] is mapping
[] is mapping
messages is mapping
0.00001
0.0001
1e16
1e15
123456789.123456789
1.0
100.0
1e22
1.5e300
-0.0
0.1 + 0.2
1/3
2/3
10/2
7//2
-7//2
7%3
-7%3
7%-3
7.5//2
-7.5//2
7.5%2
-7.5%2
2**10
2**-1
2**0.5
2**3**2
-2**2
(-2)**2
2**100
10**25
big
big + 1
big * big
big // 7
big % 1000
-big // 7
big / 10
big > 5
big == 12345678901234567890
9223372036854775807 + 1
-9223372036854775808 - 1
0xff + 0b11 + 0o17
1_000_000
1_0.5
1/0
1//0
1%0
1.0/0
true + true
true + 1
true == 1
1 == 1.0
'1' == 1
[1] == [1.0]
(1,) == [1]
{'a': 1} == {'a': 1.0}
none == false
missing == missing2
missing != 1
1 < 2 < 3
1 < 3 < 2
1 < 'a'
none < 1
[1, 2] < [1, 3]
'a' < 'b'
(1, 'a') < (1, 'b')
d < d
1 in [1, 2]
1.0 in [1, 2]
'b' in d
'z' in d
'ell' in s
1 in 'abc'
none in [none]
missing in [1]
missing in 'abc'
1 in missing
1 in none
1 in 5
'a' not in 'abc'
not 1 in [1]
(1, 2)
(1,)
()
[]
{}
[1, 'a', none, true, 1.5, (2,), {'k': 'v'}]
d
d.a
d['a'][1]
d.items
d.items()
d['items']
d.keys()
d.values()
d.keys() | list
d.get('b')
d.get('zz')
d.get('zz', 7)
d.get(missing)
d.copy()
d.update({'x': 1})
d.pop('b')
d.setdefault('q', 1)
d.b.c
d.zz
d.zz.yy
d['zz']['yy']
d.__class__
d.__class__.x
s.__class__
d | length
d | list
d | first
d | last
d | dictsort
d | dictsort(true)
d | dictsort(reverse=true)
d | items | list
{'b': 2, 'a': 10, 'c': 1} | dictsort(by='value')
{'b': 2, 'a': 10, 'c': 1} | dictsort(false, 'value', true)
{'b': 2, 'a': 10} | dictsort(by='x')
{'a': 1, 'a': 2}
{1: 'a', 1.0: 'b', true: 'c'}
{1: 'a'}[1]
{1: 'a'}[true]
{(1, 2): 'x'}[(1, 2)]
{[1]: 2}
{none: 1}
s.split(', ')
s.split()
s.split('o', 1)
s.split('')
s.split(none, 1)
s.split(sep='o')
s.split('l', maxsplit=1)
s.rsplit('o', 1)
'  a  b  '.split()
'  a  b  c '.split(none, 1)
'  a  b  c '.rsplit(none, 1)
'a,b,,c'.split(',')
''.split()
''.split(',')
'a\nb\r\nc\rd\n'.splitlines()
'a\nb\r\nc\rd\n'.splitlines(true)
'a\x0bb\x0cc\x1cd\x85e\u2028f'.splitlines()
blank.strip() ~ '|'
blank.lstrip()
blank.rstrip()
blank | trim
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'xyaxy'.rstrip('yx')
'xxaxx' | trim('x')
'abc'.strip('')
s.replace('o', '0')
s.replace('o', '0', 1)
s.replace('', '-')
s.replace('', '-', 2)
'aaa' | replace('a', 'b', 2)
'aaa' | replace('a', 'b')
123 | replace(2, 'x')
'abc'.startswith('b', 1)
'abc'.startswith(('x', 'a'))
'abc'.endswith(('x', 'c'))
'abc'.endswith('b', 0, 2)
'abc'.startswith('')
'abc'.startswith('', 5)
'abc'.startswith(1)
'abc'.startswith(['a'])
'abc'.startswith(missing)
'abab'.count('ab')
'abc'.count('')
'aXbXc'.count('X', 2)
'-'.join(['a', 'b'])
'-'.join('abc')
'-'.join([1])
', '.join(words)
'ab'.center(7, '*') ~ 'abc'.center(6, '*')
'ab'.center(6) | length
'ab'.ljust(5, '.') ~ 'ab'.rjust(5, '.')
'42'.zfill(5) ~ '-42'.zfill(5) ~ '+4'.zfill(4)
'a\tb'.expandtabs(4)
'abc'.removeprefix('a') ~ 'abc'.removesuffix('c') ~ 'abc'.removeprefix('z')
'abc'.isalpha() ~ 'ab1'.isalnum() ~ '12'.isdigit() ~ '½'.isnumeric() ~ '²'.isdigit() ~ '²'.isdecimal()
'Abc'.istitle() ~ 'aBc'.istitle() ~ 'A B'.istitle() ~ 'abc'.islower() ~ 'ABC'.isupper() ~ 'a1'.islower() ~ '1'.islower()
'ab_1'.isidentifier() ~ '1a'.isidentifier() ~ 'a b'.isprintable() ~ 'a\n'.isprintable() ~ 'é'.isascii()
'\u1680\u2000\u3000\x1c'.isspace() ~ '\u200b'.isspace()
'١٢'.isdigit() ~ ('١٢' | int)
'abc'.nosuch()
'abc'.nosuch
s.upper
'{} {}'.format('a', 1)
'{1} {0}'.format('a', 1)
'{a} {b[k]} {c.x}'.format(a=1, b={'k': 2}, c={'x': 3})
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:05d}|{:+d}|{: d}|{:,}|{:_}'.format(42, 42, 42, 1234567, 1234567)
'{:x}|{:X}|{:#x}|{:b}|{:o}|{:#b}'.format(255, 255, 255, 5, 8, 5)
'{:.2f}|{:8.3f}|{:e}|{:g}|{:.3g}|{:%}|{:.1%}'.format(3.14159, 2.5, 12345.678, 0.0001, 1234567.0, 0.25, 0.256)
'{:.2}|{:10.3}|{!r}|{!s}'.format('abcdef', 'abcdef', 'q', 'q')
'{:08,.2f}|{:012,}'.format(1234.5, 1234567)
'{}'.format(1.0) ~ '{:.3}'.format(1.0) ~ '{:5}'.format(2.5) ~ '{}'.format(none) ~ '{:>6}'.format(true)
'{{}} {}'.format('x')
'{} {}'.format('x')
'{x}'.format()
'{'.format()
'{:d}'.format('x')
'{:{}}|{:>{w}}'.format('a', 4, 'b', w=3)
'{:z}'.format(1)
'{0.__class__}'.format('a')
'%02d' % 7
'%s and %s' % ('a', 1)
'%s' % [1, 2]
'%s' % (1,)
'%(a)s-%(b)d' % {'a': 'x', 'b': 3}
'%5s|%-5s|%05d|%+d|% d' % ('a', 'b', 42, 7, 7)
'%.2f|%8.3f|%e|%g|%G' % (3.14159, 2.5, 12345.678, 1e-5, 1e20)
'%x|%X|%o|%#x|%c|%c|%%' % (255, 255, 8, 255, 'z', 65)
'%r|%a' % ('é', 'é')
'%s' % none ~ '%s' % true ~ '%d' % 3.9 ~ '%d' % true
'%s %s' % 'a'
'%s' % ('a', 'b')
'%d' % 'a'
'%.3s|%10.2s|' % ('abcdef', 'abcdef')
'%*d|%-*d|' % (5, 42, 5, 42)
'%s' % missing
'abc' % 1
'abc' % ()
'abc' % {}
'%i' % big
'%.0f %.0f %.0f' % (0.5, 1.5, 2.5)
'%s, %s!' | format('Hi', 'you')
'%(a)s' | format(a=1)
'%.2f' | format(2)
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1] ~ missing
'a' + 1
'a' + missing
missing + 'a'
1 + none
[1] + [2]
[1] + (2,)
(1,) + (2,)
'ab' * 3
3 * 'ab'
[1] * 2
(1, 2) * 2
'a' * -1
'a' * 1.5
-'a'
+5
-missing
not missing
not none
not ''
1 and 2
0 and 2
0 or 'x'
'' or none or 'z'
'a' if true else 'b'
'a' if false else 'b'
('a' if false)
('a' if false) is defined
1 if missing else 2
nums | sort
nums | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
words | sort(true)
['b', 1] | sort
people | sort(attribute='age') | map(attribute='name') | list
people | sort(attribute='age,name') | map(attribute='name') | list
people | sort(attribute='town.id', reverse=true) | map(attribute='name') | join(',')
people | groupby('age')
people | groupby('town.id') | map('first') | list
people | groupby('age') | map(attribute='list') | map('length') | list
people | groupby('age') | map(attribute='grouper') | list
people | groupby('zip', default='?') | list | length
people | sum(attribute='age')
people | map(attribute='town.id') | sum
people | max(attribute='age')
people | min(attribute='name')
nums | sum
nums | sum(start=10)
nums | max
nums | min
[] | max
words | max
words | min(case_sensitive=true)
words | unique | list
words | unique(true) | list
nums | unique | list
nums | unique
nums | batch(2) | list
nums | batch(2, 'x') | list
nums | slice(2) | list
nums | slice(3, 'x') | list
nums | slice(0) | list
nums | first
nums | last
[] | first
[] | last
'abc' | first
'abc' | last
'abc' | list
nums | reverse | list
nums | reverse | first
'abc' | reverse
(1, 2) | reverse | list
5 | reverse
nums | join
nums | join(', ')
people | join('+', attribute='name')
'abc' | join('.')
missing | join
none | join
5 | join
nums | map('string') | join('-')
words | map('upper') | list
words | map('replace', 'a', 'x') | list
words | map('nosuch') | list
nums | select('odd') | list
nums | reject('odd') | list
nums | select('greaterthan', 1) | list
nums | select | list
nums | select('nosuch') | list
words | select('in', ['a', 'b']) | list
nums | select('divisibleby', 3) | list
people | selectattr('age', '>', 26) | map(attribute='name') | list
people | selectattr('town.id', 'eq', 2) | list | length
people | selectattr('nosuch') | list
people | rejectattr('age', 'ge', 30) | map(attribute='name') | list
nums | map(attribute='x') | list
nums | length
nums | count
nums | list is sameas nums
'5' | int
'5.9' | int
'x' | int
'x' | int(7)
'0x1f' | int(0, 16)
'1f' | int(base=16)
'101' | int(0, 2)
' 42 ' | int
'1_000' | int
3.99 | int
-3.99 | int
none | int
true | int
missing | int
missing | int(1)
'5' | float
'1e3' | float
'x' | float
'x' | float(1.5)
'inf' | float
none | float
'nan' | float
-5 | abs
-5.5 | abs
'a' | abs
missing | default('x')
'' | default('x')
'' | default('x', true)
none | d('x')
none | default('x', boolean=true)
missing | default
s | wordcount
"it's a dog's life" | wordcount
'one two three four five' | wordwrap(9)
'a verylongwordindeed b' | wordwrap(6)
'a verylongwordindeed b' | wordwrap(6, false)
'well-known self-made-man' | wordwrap(8)
'one two three' | wordwrap(7, wrapstring='|')
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb' | indent('> ')
'a\nb\n' | indent(width=1, first=true)
'abcdefghij klm' | truncate(8)
'abcdefghij klm' | truncate(12)
'foo bar baz qux' | truncate(9)
'foo bar baz qux' | truncate(9, true)
'foo bar baz qux' | truncate(9, false, '!')
'foo bar baz qux' | truncate(11, leeway=0)
'foo' | truncate(1)
'x' | center(5)
s | lower
s | upper
s | string
1 | string
1.0 | string
none | string
[1] | string
5 | upper
none | upper
missing | upper
none | trim
5 | trim
'<a href="x">&\'</a>' | e
'<a>' | escape | upper
'<a>' | e | e
'<a>' | e | forceescape
'<b>' | safe
('<b>' | safe) + '<i>'
('<b>' | safe) ~ '<i>'
['<b>' | safe]
'<b>' | safe is escaped
'<b>' is escaped
'<p>a  <b>b</b>\n c</p> &amp; &lt;' | striptags
{'a': 1, 'b': none, 'c': '<x>'} | xmlattr
{'a': 1} | xmlattr(false)
{'a b': 1} | xmlattr
'a b/c?d=é&e' | urlencode
{'a b': 'c/d', 'e': 1} | urlencode
[('a', 1), ('b', '2 3')] | urlencode
1 | filesizeformat
999 | filesizeformat
1000 | filesizeformat
1500000 | filesizeformat
1048576 | filesizeformat(true)
d | attr('items')
d | attr('b')
d | tojson
d | tojson(indent=2)
d | tojson(indent='\t')
d | tojson(indent=0)
d | tojson(separators=(',', ':'))
d | tojson(sort_keys=true)
u | tojson
u | tojson(ensure_ascii=true)
ctl | tojson
ctl
[ctl]
[q, dq, both, u]
[0.1, 1e20, 1e-7, big, -1]
[missing]
missing | tojson
[1, (2, 3)] | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
'</script>&' | tojson
f | tojson
1e16 | tojson
('inf' | float) | tojson
range(3) | tojson
range(5) | list
range(2, 8, 3) | list
range(5, 0, -2) | list
range(5)
range(1, 5)
range(0, 10, 2)
range(5)[2]
range(5)[-1]
range(5)[9]
range(10)[2:5] | list
range(5) | length
3 in range(5)
range(0)
range(100001)
range(1.5)
range('a')
range(1, 2, 0)
dict(a=1, b=2)
dict([('a', 1)], b=2)
dict({'x': 1})
dict.fromkeys(['a', 'b'], 0)
dict(5)
dict
namespace(a=1)
namespace(a=1).a
namespace(a=1).b
namespace({'a': 1}).a
namespace(_a=1)
cycler('a', 'b').next()
joiner(', ')() ~ joiner(', ')()
raise_exception is callable
s is callable
d.get is callable
missing is callable
nosuchfunction()
s()
d.b()
1 is odd
2 is even
6 is divisibleby 3
6 is divisibleby(4)
1 is number
1.5 is number
true is number
'1' is number
true is boolean
1 is boolean
true is true
1 is true
false is false
0 is false
1 is integer
true is integer
1.0 is integer
1.0 is float
big is integer
none is none
missing is none
missing is undefined
missing is defined
d.zz is defined
d.b is defined
d.items is defined
'abc' is lower
'ABC' is upper
'aB' is lower
1 is lower
'' is lower
'a' is string
1 is string
none is string
1 is sameas 1
'a' is sameas 'a'
[1] is sameas [1]
none is sameas none
'a' is in 'abc'
1 is in [1]
1 is not in [1]
1 is eq 1
1 is equalto 1.0
1 is ne 2
2 is gt 1
2 is ge 2
1 is lessthan 2
1 is le 1
1 is not none
'upper' is filter
'nosuch' is filter
'odd' is test
'nosuch' is test
1 is nosuchtest
1 | nosuchfilter
'a' is odd
missing is odd
'a' 'b' "c"
'\x41\u00e9\n\'\"\\\q' ~ "\101\t|"
'\u12'
strftime_now('%d %b %Y')
strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %y %I %p %%')
raise_exception('stop')
messages[0]['content'] | upper | lower | title | replace('É', 'e')
(messages | first).content | length
messages | map(attribute='content') | map('length') | list
messages | map(attribute='content') | join(' ') | length
[1, 2, 3][1]
[1, 2, 3].1
[[1, 2], [3]][0][1]
(1, 2)[0]
(1, 2).count(1)
{'a': {'b': [1, {'c': 'deep'}]}}.a.b[1].c
s[0]
s[-1]
s[1:4]
s['x']
s[1.5]
s[missing]
s[missing:]
none[0]
none.x
none[1:]
5[0]
5 .real
5.5.is_integer()
missing[1]
missing[1:]
missing()
missing.x
missing is defined and missing.x
loop
varargs
''
1,2
[1,2,]
{'a':1,}
(1,2,)
nested
nested | string | length
'%s' | format(nested)
[true, false, none] | map('string') | join
[1, 'a', none, missing] | map('default', 'd') | list
[[3, 1], [2]] | map('sort') | list
[[3, 1], [2]] | sum(start=[])
['a', 'b'] | sum(start='')
10 | round(2) | string
'a=%s' % {'x': 1}
1 if 2 if 3 else 4 else 5
1 == 1 == 1
not 1 == 2
1 + 2 ~ 3 + 4
'a' ~ 'b' == 'ab'
2 * 3 % 4
-1 | abs
- 1 ** 2
1 + 1 | string
(1 + 1) | string ~ 'x'
d.a | length > 3 and d.b == 1
'a' in d.keys()
1 in d.values()
('b', 1) in d.items()
d.items() | list | first
people[0].town.id + people[1]['town']['id']
people | map(attribute='town') | map(attribute='id') | list
people | map(attribute='name') | map('lower') | sort | join(' ')
people | list | tojson | length
people | last
people[0] | dictsort | list
people[0].keys() | list | sort
"\u00e9" | urlencode
'abc' | batch(2) | map('join') | list
'x'.join(['a', 'b']) | upper
'a.b.c'.split('.')[-1]
'a.b.c'.rsplit('.', 1)
'Hello' | lower | first | upper
'{"a": 1}' | string
'line1\nline2' | replace('\n', '\\n')
'tab\there' | tojson
'a' < 'B'
'a' | list | tojson
'%s' % ('<x>' | e)
'abc'[::-1] | upper
'abc'[1:][0]
"abc".translate({97: 'x', 98: none})
"x" | attr('upper')
([] | first) is defined
{}.x is defined
d['C'].x
d.C['x']
d['C']['zz'] | default('none')
""".strip("\n").split("\n")

TEMPLATES = [
    "  {% if true %}\n  a\n  {% endif %}\nb\n",
    "{%- if true %}x{%- endif -%}\n y",
    "a\n  {%+ if true %}b{% endif +%}\nc",
    "{# c #}\nx {#- y -#} z\n  {# w #}\nv",
    "{% raw %}\n{{ x }}{% endraw %}\nz",
    "{%- raw -%} {{ x }} {%- endraw -%} z",
    "a\r\nb\rc\n\n",
    "{{ 'a' }}\n{{ 'b' }}\n",
    "   {{- 'a' -}}   b",
    "{{ {'a': {'b': 1}} }}",
    "{{ '}}' ~ '%}' }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop }};{% endfor %}",
    "{% for x in nums %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in missing %}a{% else %}none{% endfor %}",
    "{% for x in none %}a{% endfor %}",
    "{% for x in 5 %}a{% endfor %}",
    "{% for c in 'aé😀' %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }},{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for a, b in [(1,)] %}{% endfor %}",
    "{% for a, b in [5] %}{% endfor %}",
    "{% for x in nums if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}",
    "{% for x in nums if x > 100 %}{{ x }}{% else %}no{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in nums if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ x }}{% endfor %}",
    "{% for x in nums %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in nums %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in nums %}{% for y in nums %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% break %}",
    "{% for x in [[1, [2, [3]]], 4] recursive %}{% if x is iterable %}({{ loop(x) }}){{ loop.depth }}{% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for x in [1] %}{{ loop([2]) }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}{{ x }}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in [1] %}{% set y = 5 %}{% endfor %}{{ y is defined }}",
    "{% for i in [1] %}{% if true %}{% set y = 5 %}{% endif %}{{ y }}{% endfor %}{{ y }}",
    "{% set ns = namespace(x=1, found=false) %}{% for i in [1, 2] %}{% set ns.x = ns.x * 3 %}{% endfor %}{{ ns.x }}{{ ns.found }}",
    "{% set d.x = 1 %}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% set ns = namespace() %}{% set ns.a = [] %}{% set ns.a = ns.a + [1] %}{{ ns.a }}{{ ns }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = [1] %}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set t %}x {{ 1 + 1 }}\n{% endset %}[{{ t }}]",
    "{% set t | upper | trim %} abc {% endset %}[{{ t }}]",
    "{% set t %}{% set inner = 1 %}{% endset %}{{ inner is defined }}",
    "{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z is defined }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | trim %}  aaa {% endfilter %}|",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(b=5, a=4) }}|{{ m() }}",
    "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, b=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}",
    "{% macro m() %}{{ messages | length }}{{ bos_token }}{% endmacro %}{{ m() }}",
    "{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro fact(n) %}{% if n > 1 %}{{ n }}*{{ fact(n - 1) }}{% else %}1{% endif %}{% endmacro %}{{ fact(4) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}x{{ s }}{% endcall %}",
    "{% macro m(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) m([1, 2]) %}<{{ x }}>{% endcall %}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{{ m() }}",
    "{% macro m() %}[{{ caller is defined }}]{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m }}",
    "{% macro m() %}\n  a\n{% endmacro %}[{{ m() }}][{{ m() | trim }}]",
    "{% macro m() -%}\n  a\n{%- endmacro %}[{{- m() -}}]",
    "{% block b %}x{{ s }}{% endblock %}",
    "{% block b scoped %}x{% endblock b %}y",
    "a{% generation %}b{%- endgeneration -%} c",
    "{% for m in messages %}{% generation %}\n{{ m.role }}\n{% endgeneration %}\n{% endfor %}",
    "{% print s, 1 + 1 %}",
    "{% do 1 %}",
    "{% nosuch %}",
    "{% if %}x{% endif %}",
    "{% if true %}x",
    "{{ 1 + }}",
    "{{ x",
    "{% endif %}",
    "{% include 'a' %}",
    "{% if 'nosuch' is filter %}{{ 1 | nosuch }}{% endif %}ok",
    "{% if false %}{{ 1 | nosuch }}{% endif %}ok",
    "{% if true %}{{ 1 | nosuch }}{% endif %}ok",
    "{{ 1 | nosuch if false else 2 }}",
    "{% if s %}a{% elif 1 %}b{% else %}c{% endif %}{% if '' %}a{% elif 1 %}b{% else %}c{% endif %}{% if '' %}a{% elif 0 %}b{% else %}c{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}{% if not d %}a{% else %}b{% endif %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner() %}{% for x in nums %}{{ j() }}{{ x }}{% endfor %}",
    "{% set g = nums | select('odd') %}{{ g | list }}{{ g | list }}",
    "{% set g = nums | map('string') %}{{ g | length }}",
    "{% set g = nums | map('string') %}{% for x in g %}{{ loop.last }}{{ x }}{% endfor %}",
    "{% set g = d.items() %}{{ g | list | length }}{{ g | length }}",
    "{% set x = ['a'] %}{{ x.append('b') }}",
    "{% set x = [] %}{% set _ = x.append('b') %}{{ x }}",
    "{% set m = messages[1:] %}{% set system = messages[0]['content'] %}{{ m | length }}{{ system }}",
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{{ message['content'] | trim + eos_token }}{% endfor %}",
    "{%- set ns = namespace(is_first=false, is_tool=false, system_prompt='') -%}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}",
    "{{ raise_exception(messages[0].content) }}",
    "{{ raise_exception() }}",
    "{% for i in range(3) -%}\n  {{ i }}\n{%- endfor %}",
    "x {%- if true -%} y {%- endif -%} z",
    "{{ '  a  ' }}{{- 'b' }}",
    "line\n{%- for x in [1, 2] %}\n- {{ x }}\n{%- endfor %}\nend",
    "  {% set x = 1 %}  \n  {{ x }}  \n",
    "\n\n{% if true %}\n\na\n\n{% endif %}\n\n",
    "{% if true %}\r\na\r\n{% endif %}\r\n",
    "{{ s }}{# comment {{ x }} {% y %} #}{{ s }}",
    "{{ a.b.c }}",
    "{{ {'a': 1}.items() | list }}{{ [1, 2][:1] }}{{ 'a'.upper().lower() }}",
    "{% set x = {'a': [1, 2, {'b': 'c'}]} %}{{ x.a[2].b }}{{ x['a'][-1]['b'] }}",
    "{% for a in [1, 2] %}{% for b in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for a in [1, 2] %}{% set outer = loop %}{% for b in [1] %}{{ outer.index }}{% endfor %}{% endfor %}",
    "{% set loop = 5 %}{{ loop }}",
    "{% for x in nums %}{{ loop.index if loop.first else '' }}{% endfor %}",
    "{{ dict(a=1) | tojson }}{{ (1, 2) | list }}{{ 'é' | tojson }}",
    "{% set x %}{% endset %}{{ x == '' }}{{ x is string }}{{ x is none }}",
    "{% set q = 'a\\nb' %}{{ q }}{{ \"\\\"\" }}",
    "{{ 'a'if true else'b' }}{{1if true}}",
    "{{ -1 }}{{ - 1 }}{{-1}}{{ 1-1 }}",
    "{%if true%}a{%endif%}{%-if true-%} b {%-endif-%}",
    "{% if true: %}a{% else: %}b{% endif %}",
    "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in (1, 2) if x %}{{ x }}{% endfor %}",
    "{% set x = 1 if false %}{{ x is defined }}[{{ x }}]",
    "{{ caller }}",
    "{{ super() }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(2) }}{% endmacro %}{{ outer(1) }}",
    "{% macro m(x) %}{{ caller(x) if caller is defined else 'none' }}{% endmacro %}{% call(v) m(3) %}{{ v }}{% endcall %}{{ m(4) }}",
    "{% macro m(items) %}{% for i in items recursive %}{{ i.n }}{% if i.c %}({{ loop(i.c) }}){% endif %}{% endfor %}{% endmacro %}{{ m([{'n': 1, 'c': [{'n': 2}]}, {'n': 3}]) }}",
    "{% macro render(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}{{ p.text }}{% endfor %}{% endif %}{% endmacro %}{{ render('a') }}{{ render([{'text': 'b'}]) }}",
    "{% for m in messages | reverse %}{{ m.role }}{% endfor %}",
    "{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role }}{% endfor %}",
    "{% for i in range(messages | length - 1, -1, -1) %}{{ messages[i].role }}{% endfor %}",
    "{% set ns = namespace(last=messages|length - 1) %}{{ ns.last }}",
    "{% set content = messages[0].content %}{% if '|' in content %}{% set content = content.split('|')[-1].lstrip('\\n') %}{% endif %}{{ content }}",
    "{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}",
    "{{ (messages[0].content.split('|') | first).rstrip() }}",
    "{{ strftime_now('%d %B %Y') if strftime_now is defined else 'none' }}",
    "{{ d.a | map('string') | join(', ') }}{{ d | map('upper') | join }}",
    "{{ [1,2,3] | sum / 2 }}{{ 7 // 2 * 2.0 }}",
    "{{ none }}{{ true }}{{ false }}{{ None }}{{ True }}{{ False }}",
    "{% set none = 1 %}",
    "{{ 'x' * 3 + 'y' }}{{ [0] * 3 }}",
    "{% set x = 'a' %}{% set x = x ~ 'b' %}{% set x = x + 'c' %}{{ x }}",
    "{{ '%s' % 'a' ~ '%d' % 1 }}",
    "{{ \"a\" \"b\" }}{{ ('a' 'b') }}",
    "{{ 1 if true }}{{ (1 if false) | default('z') }}",
]


def render(env_template, variables):
    try:
        return utils._cached_compile_jinja_template(env_template).render(**variables)
    except RecursionError:
        raise
    except Exception:
        return None


def is_address(text):
    return text is not None and " at 0x" in text


def main():
    cases = []
    for source in ["{{ %s }}" % e for e in EXPRESSIONS] + TEMPLATES:
        right = render(source, VARIABLES)
        if not is_address(right) and not (right or "").startswith("<built-in"):
            cases.append({"template": source, "right": right})
    note = "made by make_template_golden.py: jinja2 3.1.6, transformers 5.23.0"
    head = {"made_by": note, "now_unix_s": NOW, "variables": VARIABLES}
    print(json.dumps(head, ensure_ascii=True)[:-1] + ', "cases": [')
    print(",\n".join(json.dumps(case, ensure_ascii=True) for case in cases))
    print("]}")


if __name__ == "__main__":
    main()
