"""The text format of the Extreme Classification Repository: a line `label,label feature:value feature:value` a
point."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel

FINE, LABEL, LABEL_RANGE, COLON, FEATURE, FEATURE_RANGE, VALUE = range(7)
"""what is wrong with a line"""
_NEWLINE, _RETURN, _SPACE, _TAB, _COMMA, _COLON, _DOT, _MINUS, _PLUS = 10, 13, 32, 9, 44, 58, 46, 45, 43
_MOST_DIGITS = 18


@kernel
def count_marks(text, marks):
    """Lines, colons and commas: as many points, features and, with a point's first one, labels at most."""
    marks[:] = 0
    for i in range(text.shape[0]):
        marks[0] += text[i] == _NEWLINE
        marks[1] += text[i] == _COLON
        marks[2] += text[i] == _COMMA


@kernel
def whole_number(text, at, end):
    """The digits from `at` on as (number, where they end); -1 where there are none or too many."""
    number, begun = 0, at
    while at < end and 48 <= text[at] <= 57:
        number = 10 * number + (text[at] - 48)
        at += 1
    return (-1 if at == begun or at - begun > _MOST_DIGITS else number), at


@kernel
def real_number(text, at, end, powers):
    """The number from `at` on, such as -1.5e-3, as (number, where it ends); NaN where there is none."""
    sign = 1.0
    if at < end and (text[at] == _MINUS or text[at] == _PLUS):
        sign = -1.0 if text[at] == _MINUS else 1.0
        at += 1
    digits, scale, seen, kept, after = 0, 0, 0, 0, False
    while at < end and (48 <= text[at] <= 57 or (text[at] == _DOT and not after)):
        if text[at] == _DOT:
            after = True
        else:
            seen += 1
            kept += kept > 0 or text[at] > 48
            if kept <= _MOST_DIGITS:
                digits = 10 * digits + (text[at] - 48)
                scale -= after
            else:
                scale += not after
        at += 1
    if seen and at < end and (text[at] == 101 or text[at] == 69):
        at += 1
        down = at < end and text[at] == _MINUS
        at += at < end and (text[at] == _MINUS or text[at] == _PLUS)
        power, at = whole_number(text, at, end)
        if power < 0:
            return np.nan, at
        scale += -power if down else power
    if not seen:
        return np.nan, at
    most = powers.shape[0] - 1
    number = digits / powers[min(-scale, most)] if scale < 0 else digits * powers[min(scale, most)]
    return sign * number, at


@kernel
def is_blank(byte):
    """A space, a tab, or the first half of another system's line end."""
    return byte in (_SPACE, _TAB, _RETURN)


@kernel
def labels_of(text, at, end, labels, columns, marks):
    """The labels of a line that begins at `at`, into `columns` from `marks` on, as (fault, where they end, marks)."""
    first = at
    while at < end and 48 <= text[at] <= 57:
        begun = at
        label, at = whole_number(text, at, end)
        if at < end and text[at] == _COLON:  # no labels: the first number was a feature's
            return (FINE, begun, marks) if begun == first else (LABEL, at, marks)
        if not 0 <= label < labels:
            return LABEL_RANGE, at, marks
        columns[marks] = label
        marks += 1
        if at < end and text[at] == _COMMA:
            at += 1
            if at >= end or not 48 <= text[at] <= 57:
                return LABEL, min(at, end - 1), marks
        elif at < end and text[at] != _NEWLINE and not is_blank(text[at]):
            return LABEL, at, marks
    return FINE, at, marks


@kernel
def features_of(text, at, end, powers, features, columns, values, nonzeros):
    """The features up to the line's end, into both arrays from `nonzeros` on, as (fault, where they end, nonzeros)."""
    while at < end and text[at] != _NEWLINE:
        if is_blank(text[at]):
            at += 1
            continue
        feature, at = whole_number(text, at, end)
        if feature < 0:
            return FEATURE, at, nonzeros
        if feature >= features:
            return FEATURE_RANGE, at, nonzeros
        if at >= end or text[at] != _COLON:
            return COLON, at, nonzeros
        value, at = real_number(text, at + 1, end, powers)
        ended = at >= end or text[at] == _NEWLINE or is_blank(text[at])
        if not ended or not np.isfinite(np.float32(value)):
            return VALUE, at, nonzeros
        columns[nonzeros], values[nonzeros] = feature, value
        nonzeros += 1
    return FINE, at, nonzeros


@kernel
def parse(text, powers, points, features, labels, x_starts, x_columns, x_values, y_starts, y_columns, fault):
    """Fill the arrays from the lines of `text`; `fault` becomes (what, line from 0 on, where) if one is bad.

    Empty lines are points too, without anything. Returns how many points there were.
    """
    at, end, point, nonzeros, marks = 0, text.shape[0], 0, 0, 0
    x_starts[0] = y_starts[0] = 0
    while at < end and point < points:
        what, at, marks = labels_of(text, at, end, labels, y_columns, marks)
        if what == FINE:
            what, at, nonzeros = features_of(text, at, end, powers, features, x_columns, x_values, nonzeros)
        if what != FINE:
            fault[:] = (what, point, at)
            return point
        at += 1
        point += 1
        x_starts[point], y_starts[point] = nonzeros, marks
    return point
