# escape=`
FROM x
RUN a `
 b
ONBUILD RUN c
ADD https://x/y /
RUN --mount=type=bind,from=x,target=/y z
FOO
