"""Completion by a kernel: a Gaussian process of the utilities themselves, which needs no models.

The door of this room: nobody outside imports from deeper in it.
"""

from fedworth.completion.by_kernel.complete import complete_by_kernel as complete_by_kernel
from fedworth.completion.by_kernel.completion import MOST_TOGETHER as MOST_TOGETHER
from fedworth.completion.by_kernel.completion import KernelCompletion as KernelCompletion
from fedworth.completion.by_kernel.completion import kernel_arrays as kernel_arrays
from fedworth.completion.by_kernel.completion import kernel_completion_from as kernel_completion_from
from fedworth.completion.by_kernel.completion import save_kernel_completion as save_kernel_completion
