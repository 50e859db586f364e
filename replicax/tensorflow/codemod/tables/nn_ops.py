"""Layers as functions: activations, losses, convolutions, pooling; images."""

from __future__ import annotations

from replicax.tensorflow.codemod.op_row import OpRow

ACTIVATIONS = [
    OpRow("nn.softmax(logits, axis=-1)", "keras.ops.softmax(logits, axis=axis)", adapt=(("axis", "last_for_none"),)),
    OpRow(
        "nn.log_softmax(logits, axis=-1)",
        "keras.ops.log_softmax(logits, axis=axis)",
        adapt=(("axis", "last_for_none"),),
    ),
    OpRow("nn.elu(features)", "keras.ops.elu(features)"),
    OpRow(
        "nn.gelu(features, approximate=False)",
        "keras.ops.gelu(features, approximate=approximate)",
        always=("approximate",),
    ),
    OpRow("nn.leaky_relu(features, alpha=0.2)", "keras.ops.leaky_relu(features, negative_slope=alpha)"),
    OpRow("nn.silu(features)", "keras.ops.silu(features)"),
    OpRow("nn.swish(features)", "keras.ops.silu(features)"),
]

LOSSES = [
    OpRow(
        "nn.softmax_cross_entropy_with_logits(labels, logits, axis=-1)",
        "keras.ops.categorical_crossentropy(labels, logits, from_logits=True, axis=axis)",
    ),
    OpRow(
        "nn.sparse_softmax_cross_entropy_with_logits(labels, logits)",
        "keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)",
    ),
    OpRow(
        "nn.sigmoid_cross_entropy_with_logits(labels, logits)",
        "keras.ops.binary_crossentropy(labels, logits, from_logits=True)",
    ),
]

_POOL = (("ksize", "window"), ("strides", "window"), ("padding", "lower_word"))
_CONV = (("strides", "window"), ("padding", "lower_word"), ("dilations", "window"))

CONVOLUTIONS = [
    OpRow(
        "nn.conv2d(input, filters, strides, padding, data_format='NHWC', dilations=None)",
        "keras.ops.conv(input, filters, strides=strides, padding=padding, dilation_rate=dilations)",
        adapt=_CONV,
    ),
    OpRow(
        "nn.conv1d(input, filters, stride, padding, data_format='NWC', dilations=None)",
        "keras.ops.conv(input, filters, strides=stride, padding=padding, dilation_rate=dilations)",
        adapt=(("stride", "window"), ("padding", "lower_word"), ("dilations", "window")),
    ),
    OpRow(
        "nn.depthwise_conv2d(input, filter, strides, padding, data_format=None, dilations=None)",
        "keras.ops.depthwise_conv(input, filter, strides=strides, padding=padding, dilation_rate=dilations)",
        adapt=_CONV,
    ),
    OpRow(
        "nn.max_pool2d(input, ksize, strides, padding)",
        "keras.ops.max_pool(input, ksize, strides=strides, padding=padding)",
        adapt=_POOL,
    ),
    OpRow(
        "nn.avg_pool2d(input, ksize, strides, padding)",
        "keras.ops.average_pool(input, ksize, strides=strides, padding=padding)",
        adapt=_POOL,
    ),
    OpRow(
        "nn.max_pool(input, ksize, strides, padding)",
        "keras.ops.max_pool(input, ksize, strides=strides, padding=padding)",
        adapt=_POOL,
    ),
    OpRow(
        "nn.avg_pool(input, ksize, strides, padding)",
        "keras.ops.average_pool(input, ksize, strides=strides, padding=padding)",
        adapt=_POOL,
    ),
    OpRow("nn.bias_add(value, bias)", "keras.ops.add(value, bias)"),
]

IMAGES = [
    OpRow(
        "image.resize(images, size, method='bilinear', preserve_aspect_ratio=False, antialias=False)",
        "keras.ops.image.resize(images, size, interpolation=method, antialias=antialias)",
        adapt=(("method", "resize_method"),),
    ),
    OpRow("image.flip_left_right(image)", "keras.ops.flip(image, axis=-2)"),
    OpRow("image.flip_up_down(image)", "keras.ops.flip(image, axis=-3)"),
    OpRow("image.rgb_to_grayscale(images)", "keras.ops.image.rgb_to_grayscale(images)"),
    OpRow(
        "image.crop_to_bounding_box(image, offset_height, offset_width, target_height, target_width)",
        "keras.ops.image.crop_images(image, top_cropping=offset_height, left_cropping=offset_width,"
        " target_height=target_height, target_width=target_width)",
    ),
    OpRow(
        "image.pad_to_bounding_box(image, offset_height, offset_width, target_height, target_width)",
        "keras.ops.image.pad_images(image, top_padding=offset_height, left_padding=offset_width,"
        " target_height=target_height, target_width=target_width)",
    ),
]

OPS = [*ACTIVATIONS, *LOSSES, *CONVOLUTIONS, *IMAGES]
