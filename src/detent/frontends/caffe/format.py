"""The part of Caffe's file format that describes networks, written down.

Each line of a message is `label type name number [default]`. Field numbers are those of BVLC Caffe; layers that only
forks have (Permute, Interp, Upsample) are read from text, where numbers do not matter, so theirs are out of the way.
"""

from __future__ import annotations

__all__ = ["ENUMS", "MESSAGES"]

_LAYER_PARAMETERS = """
    optional ConcatParameter concat_param {concat}
    optional ConvolutionParameter convolution_param {convolution}
    optional DropoutParameter dropout_param {dropout}
    optional EltwiseParameter eltwise_param {eltwise}
    optional InnerProductParameter inner_product_param {inner_product}
    optional LRNParameter lrn_param {lrn}
    optional PoolingParameter pooling_param {pooling}
    optional PowerParameter power_param {power}
    optional ReLUParameter relu_param {relu}
    optional EngineParameter sigmoid_param {sigmoid}
    optional SoftmaxParameter softmax_param {softmax}
    optional SliceParameter slice_param {slice}
    optional EngineParameter tanh_param {tanh}
"""
_V2 = {
    "concat": 104, "convolution": 106, "dropout": 108, "eltwise": 110, "inner_product": 117, "lrn": 118, "pooling": 121,
    "power": 122, "relu": 123, "sigmoid": 124, "softmax": 125, "slice": 126, "tanh": 127,
}  # fmt: skip
_V1 = {
    "concat": 9, "convolution": 10, "dropout": 12, "eltwise": 24, "inner_product": 17, "lrn": 18, "pooling": 19,
    "power": 21, "relu": 30, "sigmoid": 38, "softmax": 39, "slice": 31, "tanh": 37,
}  # fmt: skip

ENUMS: dict[str, dict[str, int]] = {
    "Phase": {"TRAIN": 0, "TEST": 1},
    "Pool": {"MAX": 0, "AVE": 1, "STOCHASTIC": 2},
    "Rounding": {"CEIL": 0, "FLOOR": 1},
    "Operation": {"PROD": 0, "SUM": 1, "MAX": 2},
    "Region": {"ACROSS_CHANNELS": 0, "WITHIN_CHANNEL": 1},
    "Engine": {"DEFAULT": 0, "CAFFE": 1, "CUDNN": 2},
    "Variance": {"FAN_IN": 0, "FAN_OUT": 1, "AVERAGE": 2},
    "V1Type": {
        "NONE": 0, "ABSVAL": 35, "ACCURACY": 1, "CONCAT": 3, "CONVOLUTION": 4, "DATA": 5, "DECONVOLUTION": 39,
        "DROPOUT": 6, "ELTWISE": 25, "FLATTEN": 8, "INNER_PRODUCT": 14, "LRN": 15, "POOLING": 17, "POWER": 26,
        "RELU": 18, "SIGMOID": 19, "SOFTMAX": 20, "SOFTMAX_LOSS": 21, "SPLIT": 22, "SLICE": 33, "TANH": 23,
    },
}  # fmt: skip

MESSAGES: dict[str, str] = {
    "BlobShape": "packed int64 dim 1",
    "BlobProto": """
        optional BlobShape shape 7
        packed float data 5
        packed double double_data 8
        optional int32 num 1
        optional int32 channels 2
        optional int32 height 3
        optional int32 width 4
    """,
    "FillerParameter": """
        optional string type 1
        optional float value 2
        optional float min 3
        optional float max 4
        optional float mean 5
        optional float std 6
        optional int32 sparse 7
        optional Variance variance_norm 8
    """,
    "ParamSpec": """
        optional string name 1
        optional float lr_mult 3
        optional float decay_mult 4
    """,
    "NetStateRule": """
        optional Phase phase 1
        optional int32 min_level 2
        optional int32 max_level 3
        repeated string stage 4
        repeated string not_stage 5
    """,
    "NetState": """
        optional Phase phase 1
        optional int32 level 2
        repeated string stage 3
    """,
    "ConcatParameter": """
        optional int32 axis 2 1
        optional uint32 concat_dim 1
    """,
    "ConvolutionParameter": """
        optional uint32 num_output 1
        optional bool bias_term 2 true
        repeated uint32 pad 3
        repeated uint32 kernel_size 4
        repeated uint32 stride 6
        repeated uint32 dilation 18
        optional uint32 pad_h 9
        optional uint32 pad_w 10
        optional uint32 kernel_h 11
        optional uint32 kernel_w 12
        optional uint32 stride_h 13
        optional uint32 stride_w 14
        optional uint32 group 5 1
        optional FillerParameter weight_filler 7
        optional FillerParameter bias_filler 8
        optional Engine engine 15
        optional int32 axis 16 1
        optional bool force_nd_im2col 17
    """,
    "DropoutParameter": "optional float dropout_ratio 1 0.5",
    "EltwiseParameter": """
        optional Operation operation 1 SUM
        repeated float coeff 2
        optional bool stable_prod_grad 3
    """,
    "InnerProductParameter": """
        optional uint32 num_output 1
        optional bool bias_term 2 true
        optional FillerParameter weight_filler 3
        optional FillerParameter bias_filler 4
        optional int32 axis 5 1
        optional bool transpose 6
    """,
    "LRNParameter": """
        optional uint32 local_size 1 5
        optional float alpha 2 1
        optional float beta 3 0.75
        optional Region norm_region 4
        optional float k 5 1
        optional Engine engine 6
    """,
    "PoolingParameter": """
        optional Pool pool 1
        optional uint32 pad 4
        optional uint32 pad_h 9
        optional uint32 pad_w 10
        optional uint32 kernel_size 2
        optional uint32 kernel_h 5
        optional uint32 kernel_w 6
        optional uint32 stride 3 1
        optional uint32 stride_h 7
        optional uint32 stride_w 8
        optional Engine engine 11
        optional bool global_pooling 12
        optional Rounding round_mode 13
    """,
    "PowerParameter": """
        optional float power 1 1
        optional float scale 2 1
        optional float shift 3 0
    """,
    "ReLUParameter": """
        optional float negative_slope 1 0
        optional Engine engine 2
    """,
    "EngineParameter": "optional Engine engine 1",
    "SoftmaxParameter": """
        optional Engine engine 1
        optional int32 axis 2 1
    """,
    "SliceParameter": """
        optional int32 axis 3 1
        repeated uint32 slice_point 2
        optional uint32 slice_dim 1
    """,
    "BatchNormParameter": """
        optional bool use_global_stats 1
        optional float moving_average_fraction 2 0.999
        optional float eps 3 1e-5
    """,
    "ScaleParameter": """
        optional int32 axis 1 1
        optional int32 num_axes 2 1
        optional FillerParameter filler 3
        optional bool bias_term 4
        optional FillerParameter bias_filler 5
    """,
    "PReLUParameter": """
        optional FillerParameter filler 1
        optional bool channel_shared 2
    """,
    "ELUParameter": "optional float alpha 1 1",
    "ReshapeParameter": """
        optional BlobShape shape 1
        optional int32 axis 2 0
        optional int32 num_axes 3 -1
    """,
    "FlattenParameter": """
        optional int32 axis 1 1
        optional int32 end_axis 2 -1
    """,
    "InputParameter": "repeated BlobShape shape 1",
    "PermuteParameter": "repeated uint32 order 1",
    "UpsampleParameter": """
        optional int32 scale 1 2
        optional int32 scale_h 2
        optional int32 scale_w 3
        optional uint32 upsample_h 5
        optional uint32 upsample_w 6
    """,
    "InterpParameter": """
        optional int32 height 1 0
        optional int32 width 2 0
        optional int32 zoom_factor 3 1
        optional int32 shrink_factor 4 1
        optional int32 pad_beg 5 0
        optional int32 pad_end 6 0
    """,
    "LayerParameter": _LAYER_PARAMETERS.format(**_V2)
    + """
        optional string name 1
        optional string type 2
        repeated string bottom 3
        repeated string top 4
        optional Phase phase 10
        repeated float loss_weight 5
        repeated ParamSpec param 6
        repeated BlobProto blobs 7
        repeated NetStateRule include 8
        repeated NetStateRule exclude 9
        repeated bool propagate_down 11
        optional PReLUParameter prelu_param 131
        optional ReshapeParameter reshape_param 133
        optional FlattenParameter flatten_param 135
        optional BatchNormParameter batch_norm_param 139
        optional ELUParameter elu_param 140
        optional ScaleParameter scale_param 142
        optional InputParameter input_param 143
        optional PermuteParameter permute_param 10001
        optional UpsampleParameter upsample_param 10002
        optional InterpParameter interp_param 10003
    """,
    "V1LayerParameter": _LAYER_PARAMETERS.format(**_V1)
    + """
        repeated string bottom 2
        repeated string top 3
        optional string name 4
        optional V1Type type 5
        repeated BlobProto blobs 6
        repeated float blobs_lr 7
        repeated float weight_decay 8
        repeated NetStateRule include 32
        repeated NetStateRule exclude 33
    """,
    "NetParameter": """
        optional string name 1
        repeated V1LayerParameter layers 2
        repeated string input 3
        repeated int32 input_dim 4
        optional bool force_backward 5
        optional NetState state 6
        repeated BlobShape input_shape 8
        repeated LayerParameter layer 100
    """,
}
