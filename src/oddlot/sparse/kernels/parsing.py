"""Parser of the text format of the Extreme Classification Repository.

Each point has a line `label,label feature:value feature:value`.
"""

import numpy as np

from oddlot.sparse.kernels.jit import kernel

FINE, LABEL, LABEL_RANGE, COLON, FEATURE, FEATURE_RANGE, VALUE = range(7)
"""Faults of a line. FINE: none."""
_NEWLINE, _RETURN, _SPACE, _TAB, _COMMA, _COLON, _DOT, _MINUS, _PLUS = 10, 13, 32, 9, 44, 58, 46, 45, 43
_MOST_DIGITS = 18


@kernel
def count_marks(text, marks):
    """Count the newlines, colons and commas of `text`, uint8, into `marks` [3].

    Colons limit the number of features. Commas plus points limit the number of labels.
    """
    marks[:] = 0
    for i in range(text.shape[0]):
        marks[0] += text[i] == _NEWLINE
        marks[1] += text[i] == _COLON
        marks[2] += text[i] == _COMMA


@kernel
def whole_number(text, at, end):
    """Parse digits from `at` on. Return the number, or -1 if there are no digits or too many, and the end."""
    number, begun = 0, at
    while at < end and 48 <= text[at] <= 57:
        number = 10 * number + (text[at] - 48)
        at += 1
    return (-1 if at == begun or at - begun > _MOST_DIGITS else number), at


@kernel
def real_number(text, at, end, powers):
    """Parse a number such as -1.5e-3 from `at` on. Return the number, or NaN if it is invalid, and the end.

    `powers[i]` is 10**i.
    """
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
    """Return whether a byte is a space, a tab or a carriage return."""
    return byte in (_SPACE, _TAB, _RETURN)


@kernel
def labels_of(text, at, end, labels, columns, marks):
    """Parse the labels of the line that starts at `at`, and write them to `columns` from `marks` on.

    Return the fault, the end of the labels, and the new `marks`.
    """
    first = at
    while at < end and 48 <= text[at] <= 57:
        begun = at
        label, at = whole_number(text, at, end)
        if at < end and text[at] == _COLON:  # no labels: the first number is a feature
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
    """Parse features until the end of the line, and write them to `columns` and `values` from `nonzeros` on.

    Return the fault, the end of the features, and the new `nonzeros`.
    """
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
    """Parse the lines of `text`, uint8, into the CSR arrays of features (x) and labels (y).

    Return the number of points. An empty line is a point without features and labels. At the first invalid line, stop
    and set `fault` to its fault, its number (from 0 on), and the position in `text`.
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
